"""Measurements that the chapters show to readers without a GPU; README.md says what each file is."""

import json
from importlib.resources import files


def load(name):
    """Returns the measurement `name` as a dict: what was measured, where, when, how, and the numbers.

    name is the file's name without .json, as "h200_attention_traffic". Units are in the keys.
    Raises ValueError, naming the results there are, if there is none of that name.
    """
    available = sorted(entry.name[:-5] for entry in files(__name__).iterdir() if entry.name.endswith(".json"))
    if name not in available:
        raise ValueError(f"There is no result named {name!r}; the results are: {', '.join(available)}.")
    return json.loads(files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
