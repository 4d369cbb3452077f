"""The file of a measurement: where, when and how it was made, and its rows, one a line."""
import datetime
import json
import platform
import re
import subprocess
import textwrap


def environment():
    """The device, its power limit in watts, and the versions of everything that took part."""
    import torch
    import triton

    device = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--id=0", "--query-gpu=driver_version,power.limit", "--format=csv,noheader,nounits"]
    driver, power_limit = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip().split(", ")
    return {
        "device": device.name,
        "sm_count": device.multi_processor_count,
        "power_limit_w": float(power_limit) if re.fullmatch(r"[\d.]+", power_limit) else power_limit,  # not every GPU says it
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()),
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def result(what, made_by, method, rows):
    """A measurement as `flashedu.results` keeps it; `method` is {what a word means here: the sentence}."""
    date = datetime.date.today().isoformat()
    return {"what": what, "date": date, "environment": environment(), "made_by": made_by, "method": method, "rows": rows}


def write(folder, subject, measured):
    """Write a measurement into a folder as DEVICE_SUBJECT.json, such as h200_attention_speed.json; returns the path."""
    device = re.sub(r"nvidia|geforce", "", measured["environment"]["device"].lower())
    name = "_".join(re.findall(r"[a-z0-9]+", device))
    parts = []
    for key, value in measured.items():
        if isinstance(value, list):
            text = "[\n    " + ",\n    ".join(json.dumps(row) for row in value) + "\n  ]"
        else:
            text = textwrap.indent(json.dumps(value, indent=2), "  ").strip()
        parts.append(f"  {json.dumps(key)}: {text}")
    path = folder / f"{name}_{subject}.json"
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    return path
