"""A second reading of docs/reference/key-placements.md, for placement_check.py: the owner of a key under another fleet's rule.

Written from the document and from the definitions of MD5, FNV-1a and SipHash-2-4; it needs no package.
"""

import hashlib

UHASHRING_POINTS = 160


def fnv1a(data):
    """FNV-1a in 32 bits."""
    hash_ = 0x811C9DC5
    for byte in data:
        hash_ = (hash_ ^ byte) * 0x01000193 & 0xFFFFFFFF
    return hash_


def siphash24(data):
    """SipHash-2-4 with a key of zeros."""
    mask = (1 << 64) - 1
    v = [0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573]

    def left(x, bits):
        return (x << bits | x >> (64 - bits)) & mask

    def add_and_turn(a, b, bits):
        v[a] = (v[a] + v[b]) & mask
        v[b] = left(v[b], bits) ^ v[a]

    def rounds(count):
        for _ in range(count):
            add_and_turn(0, 1, 13)
            v[0] = left(v[0], 32)
            add_and_turn(2, 3, 16)
            add_and_turn(0, 3, 21)
            add_and_turn(2, 1, 17)
            v[2] = left(v[2], 32)

    whole = len(data) // 8 * 8
    last = data[whole:].ljust(7, b"\0") + bytes([len(data) & 0xFF])
    for at in range(0, whole + 8, 8):
        word = int.from_bytes(data[at : at + 8] if at < whole else last, "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def md5(data):
    return int(hashlib.md5(data).hexdigest(), 16)


def as_text(key):
    """A key as the vectors write it, as the text that is hashed: an integer is its decimal digits."""
    kind, _, value = key.partition(" ")
    if kind == "text":
        return value[value.index('"') + 1 : value.rindex('"')].encode()
    if kind == "bytes":
        return bytes.fromhex(value)
    if kind == "counting":
        return bytes(i % 251 for i in range(int(value)))
    return value.encode()


class KeyRing:
    """The members under one rule: all that are there, draining or not."""

    def __init__(self, placement, virtual_nodes):
        self.placement, self.virtual_nodes, self.members = placement, virtual_nodes, {}
        self._points = None

    def add(self, instance_id, weight, _zone, draining=False):
        self.members[instance_id] = weight

    def owner(self, key):
        ids = sorted(self.members, key=str.encode)
        if not ids:
            return "nobody"
        text = as_text(key)
        if self.placement == "modulo":
            return f'"{ids[fnv1a(text) % len(ids)]}"'
        if self.placement == "uhashring":
            # The first point behind the key; of several at one place the one of the greatest id, which the dictionary keeps.
            hash_ = md5(text)
            behind = [place for place in self.points(ids) if place > hash_]
        else:
            # The first point at or behind the key.
            hash_ = siphash24(text + b"\xff")
            behind = [place for place in self.points(ids) if place >= hash_]
        points = self.points(ids)
        return f'"{points[min(behind or points)]}"'

    def points(self, ids):
        if self._points is None:
            self._points = {place: id_ for id_ in ids for place in self.points_of(id_)}
        return self._points

    def points_of(self, instance_id):
        name, weight = instance_id.encode(), self.members[instance_id]
        if self.placement == "uhashring":
            return [md5(b"%s-%d" % (name, i)) for i in range(UHASHRING_POINTS * weight)]
        return [siphash24(name + b"\xff" + i.to_bytes(4, "little")) for i in range(self.virtual_nodes * weight)]
