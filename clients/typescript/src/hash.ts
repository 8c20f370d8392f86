/**
 * The slot of a key, by rules 1 and 2 of docs/reference/placement.md: XXH3 in its 64-bit variant with seed 0. A number of 64 bits is two halves
 * here, because arithmetic with BigInt is slow: functions leave their result in `high` and `low`.
 */

import { ShardwiseError } from "./errors.js";

/** The most bytes of a key. */
const KEY_BYTES_MAX = 65_536;
const [STRIPE, STRIPES_OF_BLOCK] = [64, 16];

/** The secret of XXH3 for seed 0: 192 bytes. */
const SECRET = new DataView(Uint8Array.from(
  ("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
  + "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364ea"
  + "c5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
    .match(/../g) ?? [], (byte) => parseInt(byte, 16)).buffer);

let [high, low] = [0, 0];

/** The upper half of the product of two halves. */
function upper(a: number, b: number): number {
  const aHigh = a >>> 16, aLow = a & 0xffff, bHigh = b >>> 16, bLow = b & 0xffff;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const other = aLow * bHigh + (middle & 0xffff);
  return aHigh * bHigh + (middle >>> 16) + (other >>> 16);
}

function set(h: number, l: number): void {
  high = h >>> 0;
  low = l >>> 0;
}

function add(h: number, l: number): void {
  const sum = low + l;
  set(high + h + (sum > 0xffffffff ? 1 : 0), sum);
}

function multiply(h: number, l: number): void {
  set(upper(low, l) + Math.imul(low, h) + Math.imul(high, l), Math.imul(low, l));
}

/** Exclusive or with itself, shifted right by 1 to 63 bits. */
function shiftXor(bits: number): void {
  if (bits >= 32) set(high, low ^ (bits === 32 ? high : high >>> (bits - 32)));
  else set(high ^ (high >>> bits), low ^ ((low >>> bits) | (high << (32 - bits))));
}

/** Adds the exclusive or of both halves of the product, which has 128 bits. */
function addFolded(aHigh: number, aLow: number, bHigh: number, bLow: number): void {
  const one = upper(aLow, bLow) + (Math.imul(aLow, bHigh) >>> 0) + (Math.imul(aHigh, bLow) >>> 0);
  const two = upper(aLow, bHigh) + upper(aHigh, bLow) + (Math.imul(aHigh, bHigh) >>> 0) + Math.floor(one / 2 ** 32);
  const three = upper(aHigh, bHigh) + Math.floor(two / 2 ** 32);
  add((one ^ three) >>> 0, (Math.imul(aLow, bLow) ^ two) >>> 0);
}

/** Adds 16 bytes of the key, mixed with 16 bytes of the secret. */
function addMixed(key: DataView, at: number, secret: number): void {
  addFolded(keyed(key, at + 4, secret + 4), keyed(key, at, secret), keyed(key, at + 12, secret + 12), keyed(key, at + 8, secret + 8));
}

/** Exclusive or of 4 bytes of the key with 4 bytes of the secret. */
function keyed(key: DataView, at: number, secret: number): number {
  return (key.getUint32(at, true) ^ SECRET.getUint32(secret, true)) >>> 0;
}

function avalanche(): void {
  shiftXor(37);
  multiply(0x16566791, 0x9e3779f9);
  shiftXor(32);
}

function avalancheOfXxh64(): void {
  shiftXor(33);
  multiply(0xc2b2ae3d, 0x27d4eb4f);
  shiftXor(29);
  multiply(0x165667b1, 0x9e3779f9);
  shiftXor(32);
}

/** Exclusive or of 8 bytes of the secret with the next 8: its upper half with `half` 4, its lower half with 0. */
function flip(secret: number, half: number): number {
  return SECRET.getUint32(secret + half, true) ^ SECRET.getUint32(secret + 8 + half, true);
}

function upTo3(key: DataView, length: number): void {
  if (length === 0) {
    set(flip(56, 4), flip(56, 0));
  } else {
    const bytes = (key.getUint8(0) << 16) | (key.getUint8(length >> 1) << 24) | key.getUint8(length - 1) | (length << 8);
    set(0, bytes ^ SECRET.getUint32(0, true) ^ SECRET.getUint32(4, true));
  }
  avalancheOfXxh64();
}

function upTo8(key: DataView, length: number): void {
  const h = key.getUint32(0, true) ^ flip(8, 4), l = key.getUint32(length - 4, true) ^ flip(8, 0);
  // Rotated by 49 and by 24 bits.
  set(h ^ ((l << 17) | (h >>> 15)) ^ ((h << 24) | (l >>> 8)), l ^ ((h << 17) | (l >>> 15)) ^ ((l << 24) | (h >>> 8)));
  multiply(0x9fb21c65, 0x1e98df25);
  set(high, low ^ ((high >>> 3) + length));
  multiply(0x9fb21c65, 0x1e98df25);
  shiftXor(28);
}

function swapped(half: number): number {
  return ((half << 24) | ((half & 0xff00) << 8) | ((half >>> 8) & 0xff00) | (half >>> 24)) >>> 0;
}

function upTo16(key: DataView, length: number): void {
  const firstHigh = (key.getUint32(4, true) ^ flip(24, 4)) >>> 0, firstLow = (key.getUint32(0, true) ^ flip(24, 0)) >>> 0;
  const lastHigh = (key.getUint32(length - 4, true) ^ flip(40, 4)) >>> 0, lastLow = (key.getUint32(length - 8, true) ^ flip(40, 0)) >>> 0;
  set(0, length);
  add(swapped(firstLow), swapped(firstHigh));
  add(lastHigh, lastLow);
  addFolded(firstHigh, firstLow, lastHigh, lastLow);
  avalanche();
}

/** What every longer key begins with: its length times a prime. */
function setLength(length: number): void {
  set(0, length);
  multiply(0x9e3779b1, 0x85ebca87);
}

function upTo128(key: DataView, length: number): void {
  setLength(length);
  for (let round = (length - 1) >> 5; round >= 0; round--) {
    addMixed(key, 16 * round, 32 * round);
    addMixed(key, length - 16 * (round + 1), 32 * round + 16);
  }
  avalanche();
}

function upTo240(key: DataView, length: number): void {
  setLength(length);
  for (let round = 0; round < 8; round++) addMixed(key, 16 * round, 16 * round);
  avalanche();
  for (let round = 8; round < length >> 4; round++) addMixed(key, 16 * round, 16 * (round - 8) + 3);
  addMixed(key, length - 16, 119);
  avalanche();
}

/** Long keys have eight numbers as state, each its lower half first. */
function load(state: Uint32Array, lane: number): void {
  set(state[2 * lane + 1] ?? 0, state[2 * lane] ?? 0);
}

function store(state: Uint32Array, lane: number): void {
  state[2 * lane] = low;
  state[2 * lane + 1] = high;
}

function accumulate(state: Uint32Array, key: DataView, at: number, secret: number): void {
  for (let lane = 0; lane < 8; lane++) {
    const word = at + 8 * lane;
    const l = keyed(key, word, secret + 8 * lane), h = keyed(key, word + 4, secret + 8 * lane + 4);
    load(state, lane ^ 1);
    add(key.getUint32(word + 4, true), key.getUint32(word, true));
    store(state, lane ^ 1);
    load(state, lane);
    add(upper(l, h), Math.imul(l, h) >>> 0);
    store(state, lane);
  }
}

function scramble(state: Uint32Array): void {
  for (let lane = 0; lane < 8; lane++) {
    load(state, lane);
    shiftXor(47);
    set(high ^ SECRET.getUint32(128 + 8 * lane + 4, true), low ^ SECRET.getUint32(128 + 8 * lane, true));
    multiply(0, 0x9e3779b1);
    store(state, lane);
  }
}

function longer(key: DataView, length: number): void {
  const state = Uint32Array.of(
    0xc2b2ae3d, 0, 0x85ebca87, 0x9e3779b1, 0x27d4eb4f, 0xc2b2ae3d, 0x9e3779f9, 0x165667b1,
    0xc2b2ae63, 0x85ebca77, 0x85ebca77, 0, 0x165667c5, 0x27d4eb2f, 0x9e3779b1, 0,
  );
  const stripes = Math.floor((length - 1) / STRIPE);
  for (let stripe = 0; stripe < stripes; stripe++) {
    accumulate(state, key, STRIPE * stripe, 8 * (stripe % STRIPES_OF_BLOCK));
    if (stripe % STRIPES_OF_BLOCK === STRIPES_OF_BLOCK - 1) scramble(state);
  }
  accumulate(state, key, length - STRIPE, 121);
  setLength(length);
  const half = (lane: number, part: number) => ((state[2 * lane + part] ?? 0) ^ SECRET.getUint32(11 + 8 * lane + 4 * part, true)) >>> 0;
  for (let lane = 0; lane < 8; lane += 2) addFolded(half(lane, 1), half(lane, 0), half(lane + 1, 1), half(lane + 1, 0));
  avalanche();
}

function hashed(key: DataView, length: number): void {
  if (length <= 3) upTo3(key, length);
  else if (length <= 8) upTo8(key, length);
  else if (length <= 16) upTo16(key, length);
  else if (length <= 128) upTo128(key, length);
  else if (length <= 240) upTo240(key, length);
  else longer(key, length);
}

/** The XXH3 of bytes, as its upper and its lower half. */
export function xxh3(bytes: Uint8Array): [number, number] {
  hashed(new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), bytes.byteLength);
  return [high, low];
}

/** The slot of a hash on a ring of that many slots. */
export function slotOf(hashHigh: number, hashLow: number, slots: number): number {
  return Math.floor((hashHigh * slots + Math.floor((hashLow * slots) / 2 ** 32)) / 2 ** 32);
}

/** Used for one key after the other: three bytes for each character are enough. */
const buffer = new Uint8Array(3 * KEY_BYTES_MAX);
const view = new DataView(buffer.buffer);
const encoder = new TextEncoder();

/** The slot of a text. Throws if it is no key: not a string, too long, or no valid UTF-16. */
export function slotOfKey(key: string, slots: number): number {
  if (typeof key !== "string") throw new TypeError(`a key is a string, not ${typeof key}`);
  const length = key.length > KEY_BYTES_MAX ? Infinity : written(key);
  if (length > KEY_BYTES_MAX) throw new ShardwiseError(`a key has at most ${KEY_BYTES_MAX} bytes`);
  hashed(view, length);
  return slotOf(high, low, slots);
}

/** Writes the text into the buffer and returns its bytes. */
function written(key: string): number {
  for (let at = 0; at < key.length; at++) {
    const code = key.charCodeAt(at);
    if (code > 0x7f) return writtenSlowly(key);
    buffer[at] = code;
  }
  return key.length;
}

function writtenSlowly(key: string): number {
  // The encoder would replace half of a pair, and two keys would become one.
  if (/\p{Surrogate}/u.test(key)) throw new ShardwiseError("a key is valid Unicode: this one has half of a surrogate pair");
  return encoder.encodeInto(key, buffer).written;
}
