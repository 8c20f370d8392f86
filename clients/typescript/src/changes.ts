/** What has changed since the last report. */

/** A slot's number, or a name. */
export type Resource = number | string;
/**
 * In which slots and under which names work may begin, and in which not any more; one that was lost and regained is in both. `freed`: where lost work has
 * ended, so that other work may begin.
 */
export interface HoldingsChange { gained: Resource[]; lost: Resource[]; freed: Resource[] }

export class Changes {
  readonly #touched = new Set<Resource>();
  readonly #reported = new Map<Resource, string>();
  readonly #freed = new Set<Resource>();

  /** What was reported as gained, and not as lost since. */
  get reported(): Resource[] { return [...this.#reported.keys()]; }

  touch(resources: Iterable<Resource>): void {
    for (const resource of resources) this.#touched.add(resource);
  }

  /** The last lost work has ended there. */
  free(resource: Resource): void {
    this.#freed.add(resource);
  }

  /** Compares what was touched with what was reported. `tenure` differs for each time at which a resource is gained. */
  report(tenure: (resource: Resource) => string | undefined): HoldingsChange {
    const change: HoldingsChange = { gained: [], lost: [], freed: [...this.#freed] };
    for (const resource of this.#touched) {
      const [before, now] = [this.#reported.get(resource), tenure(resource)];
      if (before === now) continue;
      if (before !== undefined) change.lost.push(resource);
      if (now !== undefined) change.gained.push(resource);
      if (now === undefined) this.#reported.delete(resource);
      else this.#reported.set(resource, now);
    }
    this.#touched.clear();
    this.#freed.clear();
    return change;
  }
}
