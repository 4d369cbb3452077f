"""The command line: it ends quietly when nobody reads what it prints."""
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
