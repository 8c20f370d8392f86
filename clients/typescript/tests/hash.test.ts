/** Slots of keys against the vectors of the repository, which every implementation replays. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";

import { ShardwiseError } from "../src/index.js";
import { slotOf, slotOfKey, xxh3 } from "../src/hash.js";

/** SHARDWISE_CLIENT is the source of the client in the repository. */
const VECTORS = path.resolve(process.env["SHARDWISE_CLIENT"] ?? "", "../../../../crates/core/testdata/hashes.txt");

const hex = ([high, low]: [number, number]) => [high, low].map((half) => half.toString(16).padStart(8, "0")).join("");
const quoted = (text: string) => text.slice(text.indexOf('"') + 1, text.lastIndexOf('"'));

function bytes(key: string): Buffer {
  const [kind = "", value = ""] = [key.slice(0, key.indexOf(" ")), key.slice(key.indexOf(" ") + 1)];
  if (kind === "text") return Buffer.from(quoted(value));
  if (kind === "bytes") return Buffer.from(value, "hex");
  if (kind === "counting") return Buffer.from(Array.from({ length: Number(value) }, (_, at) => at % 251));
  const bits = Number(kind.slice(1));
  return Buffer.from(BigInt.asUintN(bits, BigInt(value)).toString(16).padStart(bits / 4, "0"), "hex");
}

function answer(verb: string, rest: string): string | undefined {
  if (verb === "hash") return hex(xxh3(bytes(rest)));
  if (verb === "point") {
    const number = Buffer.alloc(4);
    number.writeUInt32LE(Number(rest.slice(0, rest.indexOf(" "))));
    return hex(xxh3(Buffer.concat([Buffer.from(quoted(rest)), number])));
  }
  const [what, slots] = [rest.slice(0, rest.lastIndexOf(" of ")), Number(rest.slice(rest.lastIndexOf(" of ") + 4))];
  if (verb === "slot-of-hash") return String(slotOf(parseInt(what.slice(0, 8), 16), parseInt(what.slice(8), 16), slots));
  if (verb !== "slot") return undefined;
  const slot = slotOf(...xxh3(bytes(what)), slots);
  if (what.startsWith("text ")) assert.equal(slotOfKey(quoted(what), slots), slot);
  return String(slot);
}

test("hashes and slots are those of the vectors", () => {
  let replayed = 0;
  for (const line of readFileSync(VECTORS, "utf8").split("\n")) {
    const [question = "", expected] = line.split(" => ");
    if (expected === undefined || line.startsWith("#")) continue;
    const computed = answer(question.slice(0, question.indexOf(" ")), question.slice(question.indexOf(" ") + 1));
    if (computed === undefined) continue;
    assert.equal(computed, expected, line);
    replayed += 1;
  }
  assert.ok(replayed > 70, `${replayed}`);
});

test("a key is a string of valid Unicode and bounded size", () => {
  for (const length of [1, 2, 3, 64, 65_535, 65_536]) {
    const key = "k".repeat(length);
    assert.equal(slotOfKey(key, 16_384), slotOf(...xxh3(Buffer.from(key)), 16_384));
  }
  assert.equal(slotOfKey("\u{1f4a1}größe\u2028", 1_024), slotOf(...xxh3(Buffer.from("\u{1f4a1}größe\u2028")), 1_024));
  for (const key of ["k".repeat(65_537), "ß".repeat(32_769), "\ud83d", "a\udca1b"]) assert.throws(() => slotOfKey(key, 16), ShardwiseError, key.slice(0, 9));
  for (const key of [7, undefined, null, Buffer.from("a")]) assert.throws(() => slotOfKey(key as unknown as string, 16), TypeError);
});
