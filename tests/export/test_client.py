"""scripts/client.py: plain MuJoCo, onnxruntime and the manifest drive a bundle."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[2] / "scripts" / "client.py"


def test_the_client_is_short_and_imports_nothing_of_ours():
    text = CLIENT.read_text()
    assert len(text.splitlines()) <= 60
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert names == {"argparse", "json", "pathlib", "mujoco", "numpy", "onnxruntime"}


def test_the_client_keeps_the_shipped_humanoid_up_under_every_command(exported):
    command = [sys.executable, "-I", str(CLIENT), str(exported), "--runs", "1", "--seconds", "10"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["stand", "walk", "back", "aside", "turn"]
    assert all(": 1 of 1 up" in line for line in lines), lines
    (ahead,) = re.findall(r"moved (\S+),", lines[1])
    assert 5.0 < float(ahead) < 9.0  # 10 s at 0.8 m/s
