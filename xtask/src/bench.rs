//! `cargo xtask bench NAME`: one benchmark in release, its figures into `docs/internals/measured.md`; of `peers` also the tables in
//! `docs/internals/performance.md`. `backends`, `outbox` and `writers` fail if a goal is missed, after they have written their figures.

use std::path::{Path, PathBuf};

use cargo_metadata::TargetKind;
use serde_json::Value;

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::measured::{self, BenchmarkFigure};
use crate::report::say;
use crate::run::{HUNG_AFTER, StepLog};
use crate::{backends, files, judged, leases, outbox, peers, requests, sidecar, writers};

pub(crate) fn run(context: &TaskContext, name: Option<&str>) -> Result<(), TaskFailure> {
    let benches = context.targets(&TargetKind::Bench);
    let names: Vec<_> = benches.iter().map(|(_, name)| *name).collect();
    let Some(name) = name else {
        say(&names.join("\n"));
        return Ok(());
    };
    let found = benches.iter().find(|(_, bench)| *bench == name);
    let (package, _) = found.ok_or_else(|| TaskFailure::new(format!("no benchmark is called {name}; there are: {}", names.join(", "))))?;

    // What is measured is the tree as it is now, before any page of it is written.
    let head = measured::head(context);
    let log = StepLog::begin(context, "bench")?;
    let mut command = context.cargo(&["bench", "--package", package, "--all-features", "--bench", name]);
    let mut missed = Vec::new();
    let page = match name {
        backends::NAME => {
            // It watches groups for minutes.
            let figures = log.figures(backends::FIGURES, HUNG_AFTER * 2, [command])?;
            missed = judged::missed(&figures, &backends::GOALS);
            judged::page(&figures, &backends::GOALS, backends::page)?
        }
        leases::NAME => {
            let commands = std::iter::once(command).chain(leases::owned(context)?);
            let figures = log.figures(leases::FIGURES, HUNG_AFTER, commands)?;
            judged::page(&figures, &leases::GOALS, leases::page)?
        }
        outbox::NAME => {
            // Five rounds over fifteen contestants take about ten minutes.
            let figures = log.figures(outbox::FIGURES, HUNG_AFTER * 2, [command])?;
            missed = judged::missed(&figures, &outbox::GOALS);
            judged::page(&figures, &outbox::GOALS, outbox::page)?
        }
        requests::NAME => {
            let figures = log.figures(requests::FIGURES, HUNG_AFTER, [command])?;
            judged::page(&figures, &requests::GOALS, requests::page)?
        }
        sidecar::NAME => {
            let commands = std::iter::once(command).chain(sidecar::page_tests(context));
            let figures = log.figures(sidecar::FIGURES, HUNG_AFTER, commands)?;
            judged::page(&figures, &sidecar::GOALS, sidecar::page)?
        }
        writers::NAME => {
            // Five rounds over fourteen contestants take about ten minutes, after the build.
            let figures = log.figures(outbox::FIGURES, HUNG_AFTER * 2, [command])?;
            missed = judged::missed(&figures, &writers::GOALS);
            judged::page(&figures, &writers::GOALS, writers::page)?
        }
        _ => {
            // A separate folder, emptied first, so that all its files are from this run.
            let results = context.scratch("criterion").join(name);
            files::empty(&results)?;
            command.env("CRITERION_HOME", &results);
            let beside = (name == peers::NAME).then(|| peers::prepare(&log)).transpose()?;
            if let Some(beside) = &beside {
                command.env(peers::WORDS, &beside.words);
            }
            log.run(command)?;
            let mut figures = figures(&results)?;
            if figures.is_empty() {
                let why = format!("the benchmark {name} left no figures in {}: is it one of Criterion's?", results.display());
                return Err(TaskFailure::new(why));
            }
            if let Some(beside) = &beside {
                figures.extend(peers::uhashring(&log, beside)?);
                peers::write(&log, &head, &figures)?;
            }
            measured::table(&figures)
        }
    };
    measured::write(context, name, &head, &page)?;
    if missed.is_empty() { Ok(()) } else { Err(TaskFailure::new(format!("missed: {}", missed.join("; ")))) }
}

/// Everything that Criterion left below `folder`, in the order of the names.
fn figures(folder: &Path) -> Result<Vec<BenchmarkFigure>, TaskFailure> {
    let mut folders = vec![folder.to_path_buf()];
    let mut figures = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(TaskFailure::at(folder.display()))?;
        let children: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        match children.iter().find(|path| path.ends_with("new") && path.join("estimates.json").exists()) {
            Some(new) => {
                let [benchmark, estimates, sample] = ["benchmark.json", "estimates.json", "sample.json"].map(|file| read(&new.join(file)));
                figures.extend(figure(&benchmark?, &estimates?, &sample?));
            }
            None => folders.extend(children),
        }
    }
    figures.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(figures)
}

fn read(path: &Path) -> Result<Value, TaskFailure> {
    serde_json::from_str(&files::read(path)?).map_err(TaskFailure::at(path.display()))
}

/// One benchmark's figure from Criterion's three files about it.
fn figure(benchmark: &Value, estimates: &Value, sample: &Value) -> Option<BenchmarkFigure> {
    let numbers = |name: &str| Some(sample[name].as_array()?.iter().filter_map(Value::as_f64));
    // The median, because one sample that a neighbour disturbed spoils a mean.
    let estimate = &estimates["median"];
    Some(BenchmarkFigure {
        name: benchmark["full_id"].as_str()?.to_owned(),
        nanos: estimate["point_estimate"].as_f64()?,
        low: estimate["confidence_interval"]["lower_bound"].as_f64()?,
        high: estimate["confidence_interval"]["upper_bound"].as_f64()?,
        fastest: numbers("times")?.zip(numbers("iters")?).map(|(time, rounds)| time / rounds).fold(f64::INFINITY, f64::min),
        elements: benchmark["throughput"]["Elements"].as_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_read_from_criterions_files() {
        let benchmark = serde_json::json!({"full_id": "filter/ours/3", "throughput": {"Elements": 1000}});
        let interval = serde_json::json!({"lower_bound": 9.0, "upper_bound": 11.0});
        let estimates = serde_json::json!({"mean": null, "median": {"point_estimate": 10.0, "confidence_interval": interval}});
        let sample = serde_json::json!({"iters": [1.0, 2.0, 3.0], "times": [12.0, 17.0, 33.0]});
        let expected =
            BenchmarkFigure { name: "filter/ours/3".into(), nanos: 10.0, low: 9.0, high: 11.0, fastest: 8.5, elements: Some(1000.0) };
        assert_eq!(figure(&benchmark, &estimates, &sample), Some(expected));
        assert_eq!(figure(&benchmark, &serde_json::json!({}), &sample), None);
    }
}
