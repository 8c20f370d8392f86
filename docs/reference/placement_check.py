"""A second reading of docs/reference/placement.md and docs/reference/key-placements.md: computes every golden vector anew and compares.

Written from the document alone, so that an error in the Rust code cannot hide in the vectors. Each rule below names its number there.

    python docs/reference/placement_check.py              replay; exit code 1 on the first file with a mismatch
    python docs/reference/placement_check.py --rewrite    put what this program computes behind every arrow (then read the diff)

Needs the package `xxhash`.
"""

import argparse
import bisect
import fractions
import pathlib
import re
import sys

import xxhash

from key_placement_check import KeyRing

VECTORS = pathlib.Path(__file__).resolve().parents[2] / "crates" / "core" / "testdata"
POINTS_MAX = 4_194_304
ARROW = " => "


def xxh3(data):
    """Rule 1: XXH3-64 with seed 0."""
    return xxhash.xxh3_64_intdigest(data, seed=0)


def slot_of(hash_, slots):
    """Rule 2."""
    return (hash_ * slots) >> 64


def slot_start(slot, slots):
    """Rule 2: ceil(slot * 2^64 / slots)."""
    return -((-slot << 64) // slots)


def point(instance_id, i):
    """Rule 3: one point of a member."""
    return xxh3(instance_id.encode() + i.to_bytes(4, "little"))


class Ring:
    """The members and constants of one placement; placed when the first question is asked."""

    def __init__(self, slots, virtual_nodes, load_margin, quota=False):
        self.slots, self.virtual_nodes, self.load_margin, self.quota = slots, virtual_nodes, load_margin, quota
        self.listed, self.zones, self.versions = {}, {}, {}
        self.holders = {}
        self._owners = None

    def add(self, instance_id, weight, zone, draining=False):
        self.listed[instance_id] = (weight, draining)
        self.zones[instance_id] = zone

    def hold(self, instance_id, slots):
        self.holders.update((slot, instance_id) for slot in slots)

    def placed(self):
        """Members that take part, in the order of their ids' bytes, with their weights."""
        active = {id_: w for id_, (w, draining) in self.listed.items() if not draining}
        # Rule 6: draining members are left out, unless no other member is there.
        taking_part = active or {id_: w for id_, (w, _) in self.listed.items()}
        return sorted(taking_part.items(), key=lambda member: member[0].encode())

    def owners(self):
        """Rules 3 to 5: the position in `placed()` of every slot's owner."""
        if self._owners is None:
            self._owners = self._place(self.placed())
        return self._owners

    def _place(self, members):
        if not members:
            return []
        weights = sum(w for _, w in members)
        ring = self._points(members, weights)
        room = [self._capacity(w, weights) for _, w in members]
        least, most = self._classes(members, weights) if self.quota else ({}, {})
        together = dict.fromkeys(most, 0)
        owners = []
        for slot in range(self.slots):
            # Every point carries its member in the low 16 bits, so "at or after" is a comparison with the start itself.
            at = bisect.bisect_left(ring, slot_start(slot, self.slots) << 16)
            for step in range(len(ring)):
                member = ring[(at + step) % len(ring)] & 0xFFFF
                weight = members[member][1]
                if room[member] > 0 and not (self.quota and together[weight] >= most[weight]):
                    break
            else:
                sys.exit("no member has room: rule 5 says that this cannot be")
            room[member] -= 1
            if self.quota:
                together[weight] += 1
            owners.append(member)
        for weight in sorted(least):
            self._fill(weight, members, weights, owners, room, together, least)
        return owners

    def _classes(self, members, weights):
        """Rule 9: by weight, how many slots all members of that weight have together, at least and at most."""
        total, first = {}, {}
        for id_, weight in members:
            total[weight] = total.get(weight, 0) + self.slots * weight
            first.setdefault(weight, id_)
        quota = {weight: all_ // weights for weight, all_ in total.items()}
        cut = {weight: all_ % weights for weight, all_ in total.items() if all_ % weights > 0}
        draw = {weight: xxh3(first[weight].encode()) >> 32 for weight in cut}
        order = sorted(cut, key=lambda weight: (fractions.Fraction(draw[weight], cut[weight]), weight))
        for weight in order[: self.slots - sum(quota.values())]:
            quota[weight] += 1
        least = {weight: min(quota[weight], -(-all_ * 990 // (1000 * weights))) for weight, all_ in total.items()}
        most = {weight: max(quota[weight], all_ * 1010 // (1000 * weights)) for weight, all_ in total.items()}
        return least, most

    def _fill(self, weight, members, weights, owners, room, together, least):
        """Rule 9: the members of this weight take what lacks."""
        per_weight = self._per_weight(weights)
        mine = [position for position, (_, w) in enumerate(members) if w == weight]
        for back in range(self.slots):
            for i in range(per_weight * weight):
                for member in mine:
                    if together[weight] >= least[weight]:
                        return
                    slot = (slot_of(point(members[member][0], i), self.slots) - back) % self.slots
                    giver = members[owners[slot]][1]
                    if room[member] > 0 and giver != weight and together[giver] > least[giver]:
                        room[owners[slot]] += 1
                        room[member] -= 1
                        together[giver] -= 1
                        together[weight] += 1
                        owners[slot] = member

    def _points(self, members, weights):
        """Rule 3: sorted by hash, then by the bytes of the id, which is the order of the members."""
        per_weight = self._per_weight(weights)
        ring = []
        for position, (id_, weight) in enumerate(members):
            prefix = id_.encode()
            ring += [(xxh3(prefix + i.to_bytes(4, "little")) << 16) | position for i in range(per_weight * weight)]
        ring.sort()
        return ring

    def _per_weight(self, weights):
        """Rule 3: points for each unit of weight."""
        if self.virtual_nodes * weights > POINTS_MAX:
            return max(1, POINTS_MAX // weights)
        return self.virtual_nodes

    def _capacity(self, weight, weights):
        """Rule 5."""
        if self.load_margin is None:
            return self.slots
        return -(-self.slots * weight * (1000 + self.load_margin) // (1000 * weights))

    def replicas(self, slots, n):
        """Rule 7: for each of the slots the positions in `placed()` of the first n members of its list."""
        members, owners = self.placed(), self.owners()
        if not members:
            return [[] for _ in slots]
        ring = self._points(members, sum(w for _, w in members))
        zone = [self.zones[id_] for id_, _ in members]
        lists = []
        for slot in slots:
            at = bisect.bisect_left(ring, slot_start(slot, self.slots) << 16)
            taken, zones = [owners[slot]], {zone[owners[slot]]}
            for step in range(len(ring)):
                if len(zones) == len(set(zone)) or len(taken) >= n:
                    break  # the rest of this turn appends no member, or none that was asked for
                member = ring[(at + step) % len(ring)] & 0xFFFF
                if zone[member] not in zones:
                    taken.append(member)
                    zones.add(zone[member])
            for step in range(len(ring)):
                if len(taken) >= min(n, len(members)):
                    break
                member = ring[(at + step) % len(ring)] & 0xFFFF
                if member not in taken:
                    taken.append(member)
            lists.append(taken[:n])
        return lists

    def replica_names(self, slot, n):
        return ", ".join(self.name(position) for position in self.replicas([slot], n)[0]) or "nobody"

    def replicas_digest(self, n):
        lists = self.replicas(range(self.slots), n)
        return f"{xxh3(b''.join(o.to_bytes(4, 'little') for taken in lists for o in taken)):016x}"

    def successors(self):
        """Rule 8: the position in `placed()` of the member that should hold each slot while versions differ."""
        members = self.placed()
        if not members:
            return []
        weights = sum(w for _, w in members)
        ring = self._points(members, weights)
        position = {id_: at for at, (id_, _) in enumerate(members)}
        holders = [position.get(self.holders.get(slot)) for slot in range(self.slots)]
        room = [max(0, self._capacity(w, weights) - holders.count(at)) for at, (_, w) in enumerate(members)]
        version = [version_key(self.versions.get(id_)) for id_, _ in members]
        for slot in range(self.slots):
            if holders[slot] is not None:
                continue
            newest = max(version[member] for member in range(len(members)) if room[member] > 0)
            at = bisect.bisect_left(ring, slot_start(slot, self.slots) << 16)
            turn = (ring[(at + step) % len(ring)] & 0xFFFF for step in range(len(ring)))
            holders[slot] = next(member for member in turn if room[member] > 0 and version[member] == newest)
            room[holders[slot]] -= 1
        return holders

    def name(self, position):
        return f'"{self.placed()[position][0]}"'

    def owner_of_slot(self, slot):
        owners = self.owners()
        return self.name(owners[slot]) if owners else "nobody"

    def runs(self, owners):
        """Every slot's owner, equal neighbours written once."""
        runs, first = [], 0
        for slot in range(1, len(owners) + 1):
            if slot == len(owners) or owners[slot] != owners[first]:
                span = f"{first}" if slot - 1 == first else f"{first}-{slot - 1}"
                runs.append(f"{self.name(owners[first])} {span}")
                first = slot
        return ", ".join(runs) or "nobody"

    def digest(self):
        return f"{xxh3(b''.join(o.to_bytes(4, 'little') for o in self.owners())):016x}"

    def count(self, instance_id):
        ids = [id_ for id_, _ in self.placed()]
        return self.owners().count(ids.index(instance_id)) if instance_id in ids else 0


def version_key(version):
    """Rule 8: what is compared of a member's version."""
    if version is None:
        return (0, [], b"")
    numbers = re.match(r"([0-9]+(\.[0-9]+)*)?", version)[0]
    rest = version[len(numbers) :]
    return (1, [int(number) for number in numbers.split(".")] if numbers else [], rest.encode())


def version_order(one, other):
    one, other = version_key(one), version_key(other)
    return "older" if one < other else "newer" if one > other else "same"


def quoted(text):
    """What stands between the first and the last quotation mark, as it is."""
    return text[text.index('"') + 1 : text.rindex('"')]


def key_bytes(text):
    """Rule 1: a key as the vectors write it, as the bytes that are hashed."""
    kind, _, value = text.partition(" ")
    if kind == "text":
        return quoted(value).encode()
    if kind == "bytes":
        return bytes.fromhex(value)
    if kind == "counting":
        return bytes(i % 251 for i in range(int(value)))
    if kind[0] in "iu":
        return int(value).to_bytes(int(kind[1:]) // 8, "big", signed=kind[0] == "i")
    raise ValueError(f"unknown kind of key: {text}")


def of_slots(text):
    what, slots = text.rsplit(" of ", 1)
    return what, int(slots)


def margin(text):
    if text == "none":
        return None
    whole, _, decimals = text.partition(".")
    return int(whole) * 1000 + int(decimals.ljust(3, "0"))


class Replay:
    """Reads a file of vectors line by line: a line with an arrow asks, any other line sets the stage."""

    def __init__(self):
        self.ring, self.zones, self.version = None, [""], None

    def tell(self, line):
        verb, _, rest = line.partition(" ")
        if verb == "circle":
            self.zones, self.version = [""], None
            words = dict(word.split("=") for word in rest.split())
            if words.get("placement", "quota") != "quota":
                self.ring = KeyRing(words["placement"], int(words.get("virtual_nodes", 0)))
                return
            quota = words.get("placement") == "quota"
            self.ring = Ring(int(words["slots"]), int(words["virtual_nodes"]), margin(words["load_margin"]), quota)
        elif verb in ("member", "draining"):
            self.add(quoted(rest), int(rest.split(" ")[0]), self.zones[0], draining=verb == "draining")
        elif verb == "version":
            self.version = None if rest == "none" else quoted(rest)
        elif verb == "holds":
            first, last = rest.rsplit(" ", 1)[1].split("-")
            self.ring.hold(quoted(rest), range(int(first), int(last) + 1))
        elif verb == "zone":
            self.zones = [quoted(rest)]
        elif verb == "zones":
            self.zones = [f"{quoted(rest)}{i}" for i in range(int(rest.split(" ")[0]))]
        elif verb == "fleet":
            count, weights = rest.split(" ")[:2]
            weights = [int(w) for w in weights.split(",")]
            for i in range(int(count)):
                self.add(f"{quoted(rest)}{i}", weights[i % len(weights)], self.zones[i % len(self.zones)])
        else:
            raise ValueError(f"unknown line: {line}")

    def add(self, instance_id, weight, zone, draining=False):
        self.ring.add(instance_id, weight, zone, draining=draining)
        if self.version is not None:
            self.ring.versions[instance_id] = self.version

    def ask(self, question):
        verb, _, rest = question.partition(" ")
        if verb == "hash":
            return f"{xxh3(key_bytes(rest)):016x}"
        if verb == "slot":
            key, slots = of_slots(rest)
            return str(slot_of(xxh3(key_bytes(key)), slots))
        if verb == "slot-of-hash":
            hash_, slots = of_slots(rest)
            return str(slot_of(int(hash_, 16), slots))
        if verb == "start":
            slot, slots = of_slots(rest)
            return f"{slot_start(int(slot), slots):016x}"
        if verb == "point":
            return f"{point(quoted(rest), int(rest.split(' ')[0])):016x}"
        if verb == "version-order":
            return version_order(*quoted(rest).split('" "'))
        return self.ask_ring(verb, rest)

    def ask_ring(self, verb, rest):
        ring = self.ring
        if verb == "owners":
            return ring.runs(ring.owners())
        if verb == "successors":
            return ring.runs(ring.successors())
        if verb == "digest":
            return ring.digest()
        if verb == "owns":
            return str(ring.count(quoted(rest)))
        if verb == "owner-of-slot":
            return ring.owner_of_slot(int(rest))
        if verb == "owner" and isinstance(ring, KeyRing):
            return ring.owner(rest)
        if verb == "owner":
            return ring.owner_of_slot(slot_of(xxh3(key_bytes(rest)), ring.slots))
        if verb == "replicas":
            n, _, which = rest.partition(" ")
            slot = int(which) if which.isdigit() else slot_of(xxh3(key_bytes(which)), ring.slots)
            return ring.replica_names(slot, int(n))
        if verb == "replicas-digest":
            return ring.replicas_digest(int(rest))
        raise ValueError(f"unknown question: {verb} {rest}")


def replay(path, rewrite):
    """Answers every question of one file; returns how many agree and how many do not."""
    state, lines, passed, failed = Replay(), [], 0, 0
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line and not line.startswith("#"):
            question, arrow, expected = line.partition(ARROW)
            if not arrow:
                state.tell(line)
            else:
                answer = state.ask(question)
                if answer == expected:
                    passed += 1
                elif not rewrite:
                    failed += 1
                    print(f"{path.name}:{number}: {question}\n  computed {answer}\n  written  {expected}")
                line = question + ARROW + answer
        lines.append(line)
    if rewrite:
        path.write_text("\n".join(lines), encoding="utf-8")
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description="Replays the golden vectors of the placements.")
    parser.add_argument("--rewrite", action="store_true", help="write what is computed behind every arrow")
    rewrite = parser.parse_args().rewrite
    files = sorted(VECTORS.glob("*.txt"))
    if not files:
        sys.exit(f"no vectors in {VECTORS}")
    passed, failed = (sum(counts) for counts in zip(*(replay(path, rewrite) for path in files)))
    print("rewritten; now read the diff" if rewrite else f"{passed} vectors passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
