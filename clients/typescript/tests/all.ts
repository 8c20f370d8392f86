/** All tests in one process: they share the sidecars, and drain them. */

import "./client.test.js";
import "./types.test.js";
import "./worker.test.js";
