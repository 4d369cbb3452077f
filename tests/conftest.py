import pytest


@pytest.fixture(autouse=True)
def progress_file(tmp_path, monkeypatch):
    """No test reads or writes a learner's progress."""
    path = tmp_path / "progress.json"
    monkeypatch.setenv("FLASHEDU_PROGRESS", str(path))
    return path
