"""The process that compiles, seen from the one that asks: it is started when it is needed, and restarted when it died."""
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

SECONDS = 300  # for one question: a tile that is far too large keeps Triton busy for longer


class Compiler:
    """The process that compiles, seen from this one: a question is a line of JSON, and so is its answer."""

    def __init__(self):
        self.lock = threading.Lock()
        self.process = self.owner = None

    def _start(self):
        here = Path(__file__)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-P", here.with_name("pretended_gpu.py"), here.parents[2]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            env={**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,  # a notebook's stop button must not reach it
        )
        self.owner = os.getpid()

    def ask(self, question):
        """The answer as a dict; {"error": a sentence} if the process died, or was killed after SECONDS."""
        with self.lock:
            if self.owner != os.getpid() or self.process.poll() is not None:  # not started yet, dead, or the parent's of a fork
                self._start()
            begin = os.fstat(self.log.fileno()).st_size
            overdue = threading.Timer(SECONDS, self.process.kill)
            overdue.start()
            try:
                self.process.stdin.write(question.encode() + b"\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
            except BrokenPipeError:
                line = b""
            except BaseException:  # stopped: the answer to this question must not be taken for the next one's
                self.process.kill()
                self.process.wait()
                raise
            finally:
                late = not overdue.is_alive()
                overdue.cancel()
            return json.loads(line) if line else {"error": self._obituary(late, begin)}

    def _obituary(self, late, begin):
        code = self.process.wait()
        if late:
            return f"The compiler gave no answer within {SECONDS} seconds: a smaller tile has fewer instructions to compile."
        words = os.pread(self.log.fileno(), 100_000, begin).decode(errors="replace").strip().splitlines()
        return f"The process that compiles ended with status {code}{f' ({words[-1]})' if words else ''}."
