"""Print `N passed, N failed, N skipped`: the pytest cases of one Bazel run.

count.py EVENTS

EVENTS is the file of --build_event_json_file; it names the test.xml of every test, cached or not. A
test that failed without a failing case (it crashed, ran out of time or was not built) counts as one
failed case.
"""

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlparse


def count_cases(xml: Path) -> Counter[str]:
    """Return how many cases of a test.xml passed, failed and were skipped."""
    counts: Counter[str] = Counter()
    try:
        root = ElementTree.parse(xml).getroot()
    except (OSError, ElementTree.ParseError):
        return counts
    for case in root.iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            counts["failed"] += 1
        else:
            counts["skipped" if "skipped" in kinds else "passed"] += 1
    return counts


def count(events: Path) -> Counter[str]:
    """Return the counts of all tests in the run."""
    total: Counter[str] = Counter()
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if "testResult" in event["id"]:
            result = event["testResult"]
            counts: Counter[str] = Counter()
            for output in result.get("testActionOutput", []):
                if output["name"] == "test.xml":
                    counts = count_cases(Path(unquote(urlparse(output["uri"]).path)))
            if result["status"] != "PASSED" and not counts["failed"]:
                counts["failed"] = 1
            total += counts
        elif "targetCompleted" in event["id"]:
            built = event.get("completed", {}).get("success", False)
            total["failed"] += not built
    return total


def main() -> None:
    total = count(Path(sys.argv[1]))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")


if __name__ == "__main__":
    main()
