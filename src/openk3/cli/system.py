"""What this machine computes with: versions, processor, threads, devices, and the form of each operation."""

from __future__ import annotations

import os
import pkgutil
import platform
from dataclasses import asdict
from typing import Any

import torch

import openk3.ops
from openk3 import __version__
from openk3.model.options import ModelOptions


def describe_system() -> dict[str, Any]:
    """Return versions, processor, threads and devices, and under ``operations`` which forms each operation has."""
    cuda = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "openk3": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cuda_devices": cuda or "none",
        "operations": _operations(),
        "in_use": asdict(ModelOptions()),
    }


def _operations() -> dict[str, list[str]]:
    """Map each operation to the modules that implement it; ``reference`` is plain PyTorch."""
    folders = [found for found in pkgutil.iter_modules(openk3.ops.__path__) if found.ispkg]
    return {
        folder.name: [found.name for found in pkgutil.iter_modules([f"{openk3.ops.__path__[0]}/{folder.name}"])]
        for folder in folders
    }
