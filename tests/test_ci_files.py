"""The workflow for GitHub Actions, the example for GitLab and the Makefile: valid, and they call what exists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from robolearn import cli

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "vendor.github-workflows": ROOT / ".github" / "workflows" / "simulation.yml",
    "vendor.gitlab-ci": ROOT / "suites" / "gitlab-ci.yml",
}


@pytest.mark.parametrize("schema", FILES)
def test_a_ci_file_fits_its_schema_and_a_misspelt_key_does_not(tmp_path, schema) -> None:
    def fits(path: Path) -> bool:
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert fits(FILES[schema])
    wrong = tmp_path / FILES[schema].name
    wrong.write_text(FILES[schema].read_text().replace("  timeout", "  timeoutt"))
    assert not fits(wrong)


@pytest.mark.parametrize("schema", FILES)
def test_a_ci_file_calls_an_option_that_exists_and_the_suite_of_the_repository(schema) -> None:
    text = FILES[schema].read_text()
    (call,) = re.findall(r"robolearn sim .*", text)
    known = {option for each in cli.command().commands["sim"].params for option in each.opts}  # type: ignore[attr-defined]
    used = re.findall(r"--[a-z-]+", call)
    assert len(used) == 3
    assert set(used) <= known
    (suite,) = set(re.findall(r"suites/\w+\.yaml", text))
    assert (ROOT / suite).is_file()


@pytest.mark.parametrize("offered", [True, False])
def test_make_browser_tests_in_the_browser_that_it_installs_and_fails_without_one(tmp_path, offered) -> None:
    python, installer = tmp_path / "python", tmp_path / "apt-get"
    python.write_text("#!/bin/sh\necho tests in $BROWSER\n")
    link = f"/bin/ln -sf /bin/sh {tmp_path}/chromium" if offered else ":"
    installer.write_text(f"#!/bin/sh\n[ $1 = update ] || {link}\n")
    for script in (python, installer):
        script.chmod(0o755)
    make = shutil.which("make")
    assert make
    command = [make, "-o", "install", "browser", f"BIN={tmp_path}"]
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == offered, done.stderr
    assert (f"tests in {tmp_path}/chromium" in done.stdout) == offered
