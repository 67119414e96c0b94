"""What an sbatch file may hold: the options that Slurm documents for `#SBATCH`, and the form of their values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from robolearn.commands.workflow.scripts import require_bash
from robolearn.errors import ConfigError, did_you_mean, quote

_TIME = (
    r"(\d+|\d+:\d{1,2}|\d+:\d{1,2}:\d{1,2}|\d+-\d{1,2}|\d+-\d{1,2}:\d{1,2}|\d+-\d{1,2}:\d{1,2}:\d{1,2}"
    r"|INFINITE|UNLIMITED)"
)
_SIZE = r"\d+[KMGT]?"
_COUNT = r"[1-9]\d*"
_DEPENDENCY = r"(singleton|(after|afterany|afterburstbuffer|aftercorr|afternotok|afterok):[\w:+.-]+)"
_GRES = r"([A-Za-z0-9_.-]+:)?\d+(,([A-Za-z0-9_.-]+:)?\d+)*"

VALUES = {
    "time": (_TIME, "minutes, hours:minutes:seconds or days-hours:minutes:seconds"),
    "time-min": (_TIME, "minutes, hours:minutes:seconds or days-hours:minutes:seconds"),
    "nodes": (r"[1-9]\d*(k|m)?(-[1-9]\d*(k|m)?)?(:\d+)?(,[1-9]\d*(-[1-9]\d*)?)*", "a number, or least-most"),
    "mem": (_SIZE, "a number with K, M, G or T"),
    "mem-per-cpu": (_SIZE, "a number with K, M, G or T"),
    "mem-per-gpu": (_SIZE, "a number with K, M, G or T"),
    "tmp": (_SIZE, "a number with K, M, G or T"),
    "ntasks": (_COUNT, "a whole number"),
    "ntasks-per-node": (_COUNT, "a whole number"),
    "ntasks-per-core": (_COUNT, "a whole number"),
    "ntasks-per-gpu": (_COUNT, "a whole number"),
    "ntasks-per-socket": (_COUNT, "a whole number"),
    "cpus-per-task": (_COUNT, "a whole number"),
    "cpus-per-gpu": (_COUNT, "a whole number"),
    "gpus": (_GRES, "a number, or type:number"),
    "gpus-per-node": (_GRES, "a number, or type:number"),
    "gpus-per-task": (_GRES, "a number, or type:number"),
    "gpus-per-socket": (_GRES, "a number, or type:number"),
    "open-mode": (r"append|truncate", "append or truncate"),
    "signal": (
        r"([RB]{1,2}:)?(SIG)?([A-Z][A-Z0-9]*|\d+)(@\d{1,5})?",
        "a signal with seconds before the end, such as USR1@120",
    ),
    "dependency": (
        rf"{_DEPENDENCY}([,?]{_DEPENDENCY})*",
        "kind:job, such as afterok:123",
    ),
    "kill-on-invalid-dep": (r"yes|no", "yes or no"),
    "nice": (r"-?\d+", "a whole number"),
}
"""Options with a form, and the form in words."""

WITH_VALUE = (
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint",
    "clusters", "comment", "constraint", "container", "container-id", "core-spec", "cores-per-socket",
    "cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution",
    "error", "exclude", "export", "export-file", "extra", "extra-node-info", "get-user-env", "gid",
    "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres",
    "gres-flags", "hint", "input", "job-name", "kill-on-invalid-dep", "licenses", "mail-type", "mail-user",
    "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nodefile",
    "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node",
    "ntasks-per-socket", "open-mode", "output", "partition", "power", "prefer", "priority", "profile",
    "qos", "reservation", "resv-ports", "signal", "sockets-per-node", "switches", "thread-spec",
    "threads-per-core", "time", "time-min", "tmp", "tres-bind", "tres-per-task", "uid", "wait-all-nodes",
    "wckey", "wrap",
)  # fmt: skip
MAYBE_VALUE = ("exclusive", "nice", "propagate", "no-kill", "get-user-env", "resv-ports")
WITHOUT_VALUE = (
    "contiguous", "hold", "ignore-pbs", "no-requeue", "overcommit", "oversubscribe", "parsable", "quiet",
    "reboot", "requeue", "spread-job", "stepmgr", "test-only", "use-min-nodes", "verbose", "wait",
)  # fmt: skip
SHORT = {
    "A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "d": "dependency",
    "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "i": "input", "J": "job-name", "k": "no-kill",
    "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks", "o": "output",
    "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet", "S": "core-spec", "s": "oversubscribe",
    "t": "time", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude", "H": "hold",
}  # fmt: skip
KNOWN = (*WITH_VALUE, *MAYBE_VALUE, *WITHOUT_VALUE)
"""Long options of sbatch that may stand in a file, as its manual lists them (versions 22.05 to 25.05)."""

ONCE = ("nodes", "time", "job-name", "gpus-per-node", "mem", "dependency")
"""Options that must not be stated twice: the last one would hold silently."""


def require_option(option: str, value: str | None, where: str) -> None:
    """Check one option.

    Raises:
        ConfigError: sbatch would refuse it.
    """
    if option not in KNOWN:
        raise ConfigError(f"{where}: unknown option --{option}{did_you_mean(option, KNOWN) or ' of sbatch'}")
    if option in WITHOUT_VALUE and value is not None:
        raise ConfigError(f"{where}: --{option} takes no value, and has {quote(value)}")
    if option in WITH_VALUE and option not in MAYBE_VALUE and not value:
        raise ConfigError(f"{where}: --{option} has no value; write --{option}=VALUE")
    if value is not None and option in VALUES and not re.fullmatch(VALUES[option][0], value):
        raise ConfigError(f"{where}: --{option}={value}: it takes {VALUES[option][1]}")


def require_given(given: Sequence[str]) -> None:
    """Check options of the command line, KEY=VALUE or KEY, with or without dashes.

    Raises:
        ConfigError: sbatch would refuse one.
    """
    for word in given:
        shown = f"--sbatch {quote(word)}"
        option, equals, value = word.removeprefix("--").partition("=")
        if not word.isprintable() or not re.fullmatch(r"[a-z][a-z-]*", option):
            raise ConfigError(f"{shown}: it takes KEY=VALUE, one option of sbatch, such as partition=gpu")
        if option not in KNOWN and not equals:
            raise ConfigError(f"{shown}: it takes KEY=VALUE, such as partition=gpu")
        require_option(option, value if equals else None, "--sbatch")


def options(text: str, where: str) -> Iterator[tuple[str, str | None, str]]:
    """(option, value, place) of each `#SBATCH` line; lines after the first command do not count, as sbatch reads them.

    Raises:
        ConfigError: a line is no option, or stands where sbatch ignores it.
    """
    began = False
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{where} line {number}"
        if not line.startswith("#SBATCH"):
            began = began or bool(line.strip() and not line.startswith("#"))
            continue
        if began:
            raise ConfigError(f"{place}: #SBATCH after the first command is ignored; move it up")
        words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        if not words:
            raise ConfigError(f"{place}: #SBATCH without an option")
        i = 0
        while i < len(words):
            word = words[i]
            i += 1
            if word.startswith("--"):
                option, equals, value = word[2:].partition("=")
                given: str | None = value if equals else None
            elif re.match(r"-[A-Za-z]", word):
                if word[1] not in SHORT:
                    raise ConfigError(f"{place}: unknown option -{word[1]} of sbatch")
                option, given = SHORT[word[1]], word[2:] or None
            else:
                raise ConfigError(f"{place}: {quote(word)} is no option; options begin with --")
            if given is None and option in WITH_VALUE and i < len(words) and not words[i].startswith("-"):
                given = words[i]
                i += 1
            yield option, given, place


def require_sbatch(text: str, where: str) -> None:
    """Check an sbatch file.

    Raises:
        ConfigError: sbatch or bash would refuse it; names file, line and option.
    """
    shown = quote(where, 120)
    if not text.startswith("#!"):
        raise ConfigError(f"{shown} line 1: it must begin with #!/bin/bash")
    seen: set[str] = set()
    for option, value, place in options(text, shown):
        require_option(option, value, place)
        if option in seen and option in ONCE:
            raise ConfigError(f"{place}: --{option} is stated twice")
        seen.add(option)
    require_bash(text, where)
