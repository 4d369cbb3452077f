"""The command line: it ends quietly when nobody reads what it prints, and in a sentence when it cannot be written."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(os.name == "nt", reason="pipes break otherwise there")
@pytest.mark.parametrize("command, unbuffered", [("--help", ""), ("progress", ""), ("progress", "1"), ("zoo naive_traffic", "")])
def test_a_reader_that_has_gone_is_no_error(command, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        end = subprocess.run([sys.executable, "-m", "flashedu", *command.split()], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE,
                             env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, text=True, timeout=100)
    finally:
        os.close(writer)
    assert (end.returncode, end.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_told(unbuffered):
    with open("/dev/full", "w") as full:
        end = subprocess.run([sys.executable, "-m", "flashedu", "progress"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE,
                             env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, text=True, timeout=100)
    assert (end.returncode, end.stderr) == (1, "The output could not be written: no space is left there.\n")


@pytest.mark.skipif(os.name == "nt", reason="a shell closes it otherwise there")
def test_a_closed_output_is_no_error():
    end = subprocess.run(f"exec '{sys.executable}' -m flashedu progress >&-", shell=True, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=100)
    assert (end.returncode, end.stderr) == (0, "")
