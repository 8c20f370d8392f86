"""Runs the Python that stands in docs/reference/protocol.md, as it stands there, and replays the vectors with it.

    python docs/reference/protocol_check.py               exit code 1 if anything differs

Needs the package `xxhash`. The vectors' lines are read by placement_check.py; what they ask is answered by the page's own functions.
"""

import json
import pathlib
import re
import sys

from placement_check import VECTORS, Circle, Replay, key_bytes

PAGE = pathlib.Path(__file__).resolve().parent / "protocol.md"
RECORDS = VECTORS.parent.parent / "discovery" / "testdata" / "records.json"
FILES = ("hashes.txt", "circles.txt", "fleets.txt", "quotas.txt")
# The page's plain steps would take too long for larger fleets, which placement_check.py places.
POINTS_HERE = 200_000


def protocol():
    """The names that the page's pieces of Python define."""
    pieces = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile("\n".join(pieces), str(PAGE), "exec"), names)
    return names


def by_the_page(page):
    """A circle that is placed by the page."""

    class PageCircle(Circle):
        def _place(self, members):
            return page["place"](members, self.slots, self.virtual_nodes, self.load_margin, self.quota)

    return PageCircle


class PageReplay(Replay):
    """Answers hashes, slots and points by the page too."""

    def __init__(self, page):
        super().__init__()
        self.page = page

    def tell(self, line):
        super().tell(line)
        if type(self.circle) is Circle:
            self.circle.__class__ = by_the_page(self.page)

    def is_large(self):
        return self.circle is not None and self.circle.virtual_nodes * sum(w for _, w in self.circle.placed()) > POINTS_HERE

    def ask(self, question):
        point = re.fullmatch(r'point (\d+) "(.*)"', question)
        if point:
            data = point[2].encode() + int(point[1]).to_bytes(4, "little")
            return f"{self.page['xxh3'](data):016x}"
        hashed = re.fullmatch(r"hash (.*)", question)
        if hashed:
            return f"{self.page['xxh3'](key_bytes(hashed[1])):016x}"
        start = re.fullmatch(r"start (\d+) of (\d+)", question)
        if start:
            return f"{self.page['start_of'](int(start[1]), int(start[2])):016x}"
        slot = re.fullmatch(r"slot (.*) of (\d+)", question)
        if slot:
            return str(self.page["slot_of"](key_bytes(slot[1]), int(slot[2])))
        return super().ask(question)


def replay(page):
    """The vectors of the placement: how many agree, and what does not."""
    passed, wrong = 0, []
    for name in FILES:
        state = PageReplay(page)
        for line in (VECTORS / name).read_text(encoding="utf-8").split("\n"):
            question, arrow, expected = line.partition(" => ")
            if not line or line.startswith("#"):
                continue
            if not arrow:
                state.tell(line)
            elif state.is_large():
                continue
            elif state.ask(question) == expected:
                passed += 1
            else:
                wrong.append(f"{name}: {question}\n  computed {state.ask(question)}\n  written  {expected}")
    return passed, wrong


def records(page):
    """The same for records."""
    passed, wrong = 0, []

    def compare(what, computed, written):
        nonlocal passed
        if computed == written:
            passed += 1
        else:
            wrong.append(f"{RECORDS.name}: {what}\n  computed {computed}\n  written  {written}")

    vectors = json.loads(RECORDS.read_text(encoding="utf-8"))
    for case in vectors["fingerprints"]:
        given = {name: value for name, value in case.items() if name != "is"}
        compare(given, page["fingerprint"](**given), case["is"])
    asked = [vectors["owners"][name] for name in ("slots", "virtual_nodes", "load_margin_thousandths")]
    keys = vectors["owners"]["keys"]
    for case in vectors["views"]:
        told = [(m["id"], m["joined"], m["record"]) for m in case["members"]]
        try:
            view = page["view_of"]([page["read_record"](*each) for each in told])
            compare(f"{case['why']}: group", page["group_fingerprint"](view), case["group"])
            compare(f"{case['why']}: placed", [list(member) for member in page["placed"](view)], case["placed"])
            for placement in ("ring", "quota"):
                owners = [page["owner_of"](key.encode(), told, *asked, placement == "quota") for key in keys]
                compare(f"{case['why']}: owners by {placement}", owners, case[placement])
        except ValueError:
            compare(f"{case['why']}: unreadable", [None] * 3, [case[name] for name in ("placed", "ring", "quota")])
    return passed, wrong


def proofs(page):
    """The same for the proofs of two connections; src/membership/proof.rs and src/requests/proven/tests.rs have the same numbers."""
    asked = ("POST", "/v1/peers/workers/worker-1/0000000000000007/cache/flush?what=all", "application/json", None, b'{"a":1}')
    member = (b"members-know-this-one", "requests", "workers", "worker-1", 7, b"\x11" * 32)
    key = page["connection_key"](*member, b"\x22" * 32)
    question = page["question"](key, 0, *asked)
    computed = [page["welcome"](key), question, page["answer"](key, 0, question, "1", 200, "text/plain", b"ok")]
    # The recipient's proofs cover the addressee.
    key = page["connection_key"](*member, b"\x22" * 24 + b"coversto")
    computed += [page["welcome"](key), page["question"](key, 0, *asked, to="any")]
    written = [
        "7bbaf0deb9d4ae922c37e27d450b66245978a289e0e9e082657df235b1f682bd",
        "ca7880856ac1a87c77136f71868703c886a499d4b6135d02733b00912d023f84",
        "11567d1b59e363c0a264ec2bd7cf515fecb98e48594a4619057e54a9b477b17a",
        "46764ddb677c5130fb877c7c2ee1061a04f6fd9de2099638df636b54f056dde0",
        "3bd45cc36e1a48b24cb13891c4d6d8bdd7649662b7fed0e33023abc44a8cd939",
    ]
    pairs = [(one.hex(), other) for one, other in zip(computed, written)]
    wrong = [f"proofs:\n  computed {one}\n  written  {other}" for one, other in pairs if one != other]
    return len(pairs) - len(wrong), wrong


def main():
    page = protocol()
    results = [replay(page), records(page), proofs(page)]
    passed, wrong = sum(each[0] for each in results), [line for each in results for line in each[1]]
    for each in wrong:
        print(each)
    print(f"{passed} vectors passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
