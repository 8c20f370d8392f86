//! The second reading of the placement protocol, `docs/reference/placement_check.py`, and the third, which is the Python in
//! `docs/reference/protocol.md`.

use shardwise_testkit::python_with;

use crate::failure::TaskFailure;
use crate::pass::StepPass;
use crate::run::StepLog;

pub(crate) fn replay(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let python = python_with(&["xxhash"])?;
    let mut passed = 0;
    for program in ["docs/reference/placement_check.py", "docs/reference/protocol_check.py"] {
        let output = log.run(log.context.command(&python.to_string_lossy(), &["-B", program]))?;
        let count: Option<u64> = output.lines().find_map(|line| line.split_once(" vectors passed")?.0.parse().ok());
        passed += count.ok_or_else(|| TaskFailure::new(format!("{program} did not say how many vectors passed")))?;
    }
    Ok(StepPass::many(passed))
}
