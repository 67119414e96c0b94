"""Checks of a simulation: what passed, failed or was not checked, and the JUnit report of them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from robolearn.errors import one_line, printable


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    passed: bool | None
    """None: not checked; `why` says why not."""
    value: str
    limit: str
    why: str = ""
    """Why it failed, or why it was not checked."""

    @property
    def verdict(self) -> str:
        """PASS, FAIL or SKIP."""
        return {True: "PASS", False: "FAIL", None: "SKIP"}[self.passed]

    @property
    def message(self) -> str:
        """One line for a report: of a failure, or why it was not checked."""
        if self.passed is None:
            return one_line(self.why)
        return one_line(f"{self.value}, limit {self.limit}" + (f": {self.why}" if self.why else ""))

    def __str__(self) -> str:
        line = f"{self.verdict} {self.name:<17} {self.value:<14} limit {self.limit}"
        return f"{line}   {self.why}" if self.why else line


@dataclass(frozen=True)
class Group:
    """The checks of one simulation: a `testsuite` of JUnit."""

    name: str
    checks: Sequence[Check]
    properties: Mapping[str, object]
    seconds: float
    """Wall time of the simulation [s]."""
    classname: str = ""
    """Of its test cases; its name where empty."""
    suffix: str = ""
    """Follows the name of each check, to tell those of several simulators apart."""
    files: Sequence[str] = field(default_factory=tuple)
    """What was kept of its failures."""


def junit_xml(name: str, groups: Sequence[Group]) -> bytes:
    """A JUnit report with a test case for each check; characters that XML cannot hold are escaped."""
    root = ET.Element("testsuites")
    every = [check for group in groups for check in group.checks]
    # Jenkins' schema has `skipped` in a testsuite only.
    totals = {key: value for key, value in _counts(every).items() if key != "skipped"}
    root.attrib = {"name": printable(name), **totals, "time": _time(sum(group.seconds for group in groups))}
    for group in groups:
        attributes = {"name": printable(group.name), **_counts(group.checks), "time": _time(group.seconds)}
        suite = ET.SubElement(root, "testsuite", attributes)
        listed = ET.SubElement(suite, "properties")
        for key, value in group.properties.items():
            ET.SubElement(listed, "property", {"name": key, "value": printable(str(value))})
        for check in group.checks:
            _case(suite, group, check)
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _case(suite: ET.Element, group: Group, check: Check) -> None:
    attributes = {
        "classname": printable(group.classname or group.name),
        "name": printable(check.name + group.suffix),
    }
    case = ET.SubElement(suite, "testcase", {**attributes, "time": "0"})
    if check.passed is False:
        failure = ET.SubElement(case, "failure", {"message": check.message, "type": "gate"})
        failure.text = "\n".join([check.message, *(printable(file) for file in group.files)])
    elif check.passed is None:
        ET.SubElement(case, "skipped", {"message": check.message})
    else:
        ET.SubElement(case, "system-out").text = printable(f"{check.value}, limit {check.limit}")


def _counts(checks: Sequence[Check]) -> dict[str, str]:
    failures, skipped = (sum(check.passed is which for check in checks) for which in (False, None))
    return {"tests": str(len(checks)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"
