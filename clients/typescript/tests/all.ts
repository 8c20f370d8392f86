/** All tests in one process: they share the sidecars, and drain them. */

import "./ask.test.js";
import "./client.test.js";
import "./examples.test.js";
import "./hash.test.js";
import "./holdings.test.js";
import "./lease.test.js";
import "./names.test.js";
import "./owned_requests.test.js";
import "./requests.test.js";
import "./rules.test.js";
import "./runs.test.js";
import "./sidecar.test.js";
import "./types.test.js";
import "./worker.test.js";
