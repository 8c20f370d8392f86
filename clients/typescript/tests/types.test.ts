/**
 * The types of the answers against /openapi.json of a sidecar that runs, in both directions. Types are gone when this runs, so it writes what the
 * document says as types, and has TypeScript compare them. SHARDWISE_TSC is TypeScript's compiler, SHARDWISE_CLIENT the client's source.
 */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";

import { ONE, TOKEN } from "./common.js";

interface Schema {
  $ref?: string; oneOf?: Schema[]; allOf?: Schema[]; type?: string | string[]; items?: Schema; properties?: Record<string, Schema>; additionalProperties?: Schema;
}
interface Document { paths: Record<string, Record<string, { responses: Record<string, { content: Record<string, { schema: Schema }> }> }>>; components: { schemas: Record<string, Schema> } }

const ANSWERS = [
  ["Owner", "get", "owner/{key}"], ["Explanation", "get", "explain/{key}"], ["Ownership", "get", "ownership"], ["Group", "get", "members"],
  ["Plan", "post", "plan"], ["Wish", "post", "drain"], ["Wish", "post", "undrain"], ["{ rebalances: Rebalance[] }", "get", "rebalances"],
  ["Holders", "get", "holders"], ["WorkerLease", "post", "leases"], ["WorkerLease", "put", "leases/{lease}"], ["GrantTable", "get", "grants"],
  ["GrantLine", "get", "grants", "application/x-ndjson"], ["EnteredKey[]", "post", "enter"], ["Route", "get", "route"],
] as const;

/** What the schema says, as TypeScript. */
function typed(schema: Schema, schemas: Record<string, Schema>): string {
  const inner = (each: Schema | undefined) => typed(each ?? {}, schemas);
  if (schema.$ref !== undefined) return inner(schemas[schema.$ref.replace(/.*\//, "")]);
  if (schema.allOf !== undefined) return `Flat<${schema.allOf.map(inner).join(" & ")}>`;
  if (schema.oneOf !== undefined) return `(${schema.oneOf.map(inner).join(" | ")})`;
  if (Array.isArray(schema.type)) return `(${schema.type.map((type) => inner({ ...schema, type })).join(" | ")})`;
  if (schema.type === "array") return `${inner(schema.items)}[]`;
  if (schema.type === "integer") return "number";
  if (schema.type !== "object") return schema.type ?? "never";
  if (schema.properties === undefined) return `Record<string, ${inner(schema.additionalProperties)}>`;
  return `{ ${Object.entries(schema.properties).map(([name, field]) => `${JSON.stringify(name)}: ${inner(field)}`).join("; ")} }`;
}

test("types are those of the document", async () => {
  const document = (await (await fetch(`${ONE}/openapi.json`, { headers: { authorization: `Bearer ${TOKEN}` } })).json()) as Document;
  const lines = ANSWERS.map(([type, method, route, media = "application/json"], at) => {
    const { responses = {} } = document.paths[`/v1/policies/{policy}/${route}`]?.[method] ?? {};
    const answer = (responses["200"] ?? responses["201"])?.content[media];
    assert.ok(answer, route);
    return `export const answer${at}: Same<${type}, ${typed(answer.schema, document.components.schemas)}> = true;`;
  });
  const text = `
    import type { EnteredKey, Explanation, GrantLine, GrantTable, Group, Holders, Owner, Ownership, Plan, Rebalance, Route, Wish, WorkerLease } from ${JSON.stringify(process.env["SHARDWISE_CLIENT"])};
    type Same<A, B> = [Required<A>] extends [B] ? ([B] extends [Required<A>] ? true : false) : false;
    type Flat<A> = { [Name in keyof A]: A[Name] };
    // The comparison finds a field that is missing on one side or has another type.
    export const less: Same<Owner, Omit<Owner, "slot">> = false;
    export const more: Same<Owner, Owner & { more: string }> = false;
    export const another: Same<Owner, Omit<Owner, "slot"> & { slot: number }> = false;
    ${lines.join("\n    ")}
  `;
  const folder = await mkdtemp(path.join(tmpdir(), "shardwise-types-"));
  try {
    const file = path.join(folder, "types.mts");
    await writeFile(file, text);
    const options = ["--noEmit", "--strict", "--exactOptionalPropertyTypes", "--module", "NodeNext", "--target", "ES2022", "--lib", "ES2022,DOM"];
    const ran = spawnSync(process.execPath, [process.env["SHARDWISE_TSC"] ?? "", ...options, file], { encoding: "utf8" });
    assert.equal(ran.status, 0, `${ran.stdout}${ran.stderr}${text}`);
  } finally {
    await rm(folder, { recursive: true });
  }
});
