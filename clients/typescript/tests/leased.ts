/** A lease on a fake sidecar, whose ring has 16 slots. */

import type { Lease, LeaseOptions } from "../src/index.js";
import { slotOfKey } from "../src/hash.js";
import { client, eventually } from "./common.js";
import { FakeSidecar } from "./fake.js";

/** Of leases that are to hold for a whole test: a busy machine may not run this process for a while. */
export const TTL_MS = 3_000;
const ALL = Array.from({ length: 16 }, (_, slot) => slot);
/** A key of each of the 16 slots. */
export const KEYS = ALL.map((slot) => Array.from({ length: 1_000 }, (_, n) => `key-${n}`).find((key) => slotOfKey(key, 16) === slot) ?? "");
export const key = (slot: number) => KEYS[slot] ?? "";

/** A lease on a fake sidecar, and what the lease has reported. */
export async function leased(options: LeaseOptions, use: (lease: Lease, sidecar: FakeSidecar, errors: unknown[], url: string) => Promise<void>): Promise<void> {
  await FakeSidecar.with(async (sidecar, url) => {
    const errors: unknown[] = [];
    const lease = await client(url).lease({ ttlMs: TTL_MS, onError: (error) => errors.push(error), ...options });
    try {
      await use(lease, sidecar, errors, url);
    } finally {
      await lease.close({ withinMs: 0 });
    }
  });
}

export const owns = (lease: Lease, ...slots: number[]) => eventually(`it owns ${slots}`, () => `${lease.owned(KEYS)}` === `${slots.map(key)}`);

/** Resolves when that work should end. */
export const asked = ({ finish }: { finish: AbortSignal }) => new Promise<void>((stop) => finish.addEventListener("abort", () => stop()));
