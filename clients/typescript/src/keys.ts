/** Lists of keys. */

/** A list of keys, but not a string, whose characters would be the keys. */
export type Keys = Iterable<string> & object;

/** The list. JavaScript can pass a string, which is a TypeError. */
export function listed<T extends Keys | AsyncIterable<string>>(keys: T): T {
  if (typeof keys === "string") throw new TypeError(`a list of keys is needed, such as [${JSON.stringify(keys)}], and not a string`);
  return keys;
}
