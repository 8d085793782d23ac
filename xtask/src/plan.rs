//! Runs jobs in parallel. Each is a process with its own log, a load, and the jobs that it depends on.
//!
//! In: jobs, and a function that adds more when one has ended (the tests are known only after the build). Out: one line
//! on the terminal for each job, the end of the log of each one that failed, and a [`JobResult`] for each.
//!
//! Always holds: the loads of the running jobs never add up to more than the processors of the machine, except that one
//! job larger than the machine runs alone. If a job needs one that has failed, it does not start, and is reported as
//! such. A failure stops no other job, so that one run shows every failure. Of the jobs that could start, the one with
//! the longest expected time starts first.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use crate::child::last_lines;
use crate::steps::shown;

/// A process to run.
pub struct CheckJob {
    /// Unique in a plan. The part before `: ` is the group under which the report adds up seconds.
    pub name: String,
    pub command: Command,
    /// Names of jobs that must have succeeded before.
    pub needs: Vec<String>,
    /// Processors that it keeps busy: 0 for a download, [`WHOLE_MACHINE`] for a build.
    pub load: f64,
    /// Whether the load stays, whatever was measured.
    pub has_fixed_load: bool,
    /// Seconds that it is expected to take, for the order.
    pub expected: f64,
    /// Whether its output goes to the terminal instead of a log.
    pub is_shown: bool,
    /// It is killed after this time.
    pub timeout: Duration,
    /// The command that a person types to run it alone.
    pub again: String,
}

/// Load of a job that uses all processors, so that it runs alone.
pub const WHOLE_MACHINE: f64 = f64::INFINITY;

/// A job that hangs is killed after this time, unless it says otherwise.
pub const JOB_TIMEOUT: Duration = Duration::from_secs(15 * 60);

impl CheckJob {
    /// A job that keeps one processor busy and needs nothing.
    pub fn new(name: impl Into<String>, command: Command) -> CheckJob {
        let again = shown(&command);
        let (needs, load, expected) = (Vec::new(), 1.0, 0.0);
        CheckJob {
            name: name.into(),
            command,
            needs,
            load,
            has_fixed_load: false,
            expected,
            is_shown: false,
            timeout: JOB_TIMEOUT,
            again,
        }
    }

    /// Uses every processor, and shows its output.
    pub fn build(name: impl Into<String>, command: Command) -> CheckJob {
        CheckJob {
            load: WHOLE_MACHINE,
            has_fixed_load: true,
            is_shown: true,
            timeout: 4 * JOB_TIMEOUT,
            ..CheckJob::new(name, command)
        }
    }

    pub fn needs(mut self, name: &str) -> CheckJob {
        self.needs.push(name.to_string());
        self
    }

    pub fn load(mut self, load: f64) -> CheckJob {
        (self.load, self.has_fixed_load) = (load, true);
        self
    }

    pub fn expected(mut self, seconds: f64) -> CheckJob {
        self.expected = seconds;
        self
    }

    pub fn again(mut self, command: impl Into<String>) -> CheckJob {
        self.again = command.into();
        self
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    Passed,
    Failed,
    /// Killed at its timeout.
    TimedOut,
    /// A job that it needs has failed, or the plan ended before it could start.
    NotStarted,
}

/// A job that has ended.
pub struct JobResult {
    pub name: String,
    pub outcome: JobOutcome,
    pub took: Duration,
    /// Time of processors that it and the processes it waited for have used.
    pub cpu: Duration,
    /// Its output; empty if it went to the terminal.
    pub output: String,
}

/// The jobs of one run, and where their logs go.
pub struct JobPlan {
    logs: PathBuf,
    processors: f64,
    waiting: Vec<CheckJob>,
    results: Vec<JobResult>,
    /// No job starts after this moment.
    pub until: Option<Instant>,
}

impl JobPlan {
    /// Logs go below `logs`, which is emptied.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn new(logs: &Path, processors: usize) -> Result<JobPlan, String> {
        let _ = fs::remove_dir_all(logs);
        fs::create_dir_all(logs).map_err(|e| format!("{}: {e}", logs.display()))?;
        let processors = processors as f64;
        Ok(JobPlan { logs: logs.into(), processors, waiting: Vec::new(), results: Vec::new(), until: None })
    }

    pub fn add(&mut self, job: CheckJob) {
        self.waiting.push(job);
    }

    /// Runs until no job is left. `ended` sees each result and may return more jobs.
    pub fn run(mut self, mut ended: impl FnMut(&JobResult) -> Vec<CheckJob>) -> Vec<JobResult> {
        let (sender, exits) = channel();
        let mut running: HashMap<String, CheckJob> = HashMap::new();
        loop {
            self.drop_hopeless();
            while let Some(mut job) = self.take_next(&running) {
                match self.start(&mut job) {
                    Ok(child) => {
                        watch(child, job.name.clone(), job.timeout, sender.clone());
                        running.insert(job.name.clone(), job);
                    }
                    Err(e) => self.end(failed_to_start(job, &e), &mut ended),
                }
            }
            if running.is_empty() {
                break;
            }
            let exit = exits.recv().expect("this thread holds a sender");
            let job = running.remove(&exit.name).expect("only running jobs are watched");
            self.end(self.finish(job, &exit), &mut ended);
        }
        for job in std::mem::take(&mut self.waiting) {
            self.results.push(not_started(job));
        }
        self.results
    }

    fn end(&mut self, result: JobResult, ended: &mut impl FnMut(&JobResult) -> Vec<CheckJob>) {
        self.waiting.extend(ended(&result));
        self.results.push(result);
    }

    /// Gives up the jobs that need a failed one.
    fn drop_hopeless(&mut self) {
        loop {
            let failed = |need: &String| {
                self.results.iter().any(|r| r.name == *need && r.outcome != JobOutcome::Passed)
            };
            let Some(at) = self.waiting.iter().position(|job| job.needs.iter().any(failed)) else { return };
            let job = self.waiting.swap_remove(at);
            self.results.push(not_started(job));
        }
    }

    /// The job that starts next, if one fits.
    fn take_next(&mut self, running: &HashMap<String, CheckJob>) -> Option<CheckJob> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let used: f64 = running.values().map(|job| job.load.min(self.processors)).sum();
        let is_ready = |job: &CheckJob| {
            job.load.min(self.processors) + used <= self.processors
                && job.needs.iter().all(|need| self.results.iter().any(|r| r.name == *need))
        };
        let ready = self.waiting.iter().enumerate().filter(|(_, job)| is_ready(job));
        let longest = ready.max_by(|(_, a), (_, b)| a.expected.total_cmp(&b.expected)).map(|(at, _)| at)?;
        Some(self.waiting.swap_remove(longest))
    }

    fn start(&self, job: &mut CheckJob) -> std::io::Result<Child> {
        job.command.stdin(Stdio::null());
        if job.is_shown {
            println!("==> {}: {}", job.name, job.again);
        } else {
            let log = File::create(self.log(&job.name))?;
            job.command.stdout(log.try_clone()?).stderr(log);
        }
        job.command.spawn()
    }

    fn log(&self, name: &str) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        self.logs.join(name.chars().map(plain).collect::<String>() + ".log")
    }

    fn finish(&self, job: CheckJob, &ProcessExit { status, took, cpu, .. }: &ProcessExit) -> JobResult {
        let path = self.log(&job.name);
        let output = match job.is_shown {
            true => String::new(),
            false => fs::read(&path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default(),
        };
        let outcome = match status {
            Some(status) if status.success() => JobOutcome::Passed,
            Some(_) => JobOutcome::Failed,
            None => JobOutcome::TimedOut,
        };
        let seconds = took.as_secs_f64();
        match (outcome, status) {
            (JobOutcome::Passed, _) => println!("{seconds:>8.1} s  ok      {}", job.name),
            (_, status) => {
                let why = match status {
                    Some(status) => status.to_string(),
                    None => format!("killed after {seconds:.0} s"),
                };
                println!("{seconds:>8.1} s  FAILED  {}: {why}", job.name);
                print!("{}", last_lines(&output, LINES_OF_FAILED));
                println!("  run it again: {}", job.again);
                if !job.is_shown {
                    println!("  whole output: {}", path.display());
                }
            }
        }
        JobResult { name: job.name, outcome, took, cpu, output }
    }
}

/// How the process of a job ended.
struct ProcessExit {
    name: String,
    /// None if it was killed at its timeout.
    status: Option<ExitStatus>,
    took: Duration,
    cpu: Duration,
}

/// Waits for a process on a thread of its own, kills it at its timeout, and reports its end to `exits`.
fn watch(mut child: Child, name: String, timeout: Duration, exits: Sender<ProcessExit>) {
    let started = Instant::now();
    std::thread::spawn(move || {
        let mut cpu = Duration::ZERO;
        let status = loop {
            cpu = cpu_time(child.id()).unwrap_or(cpu);
            match child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if started.elapsed() < timeout => std::thread::sleep(POLL),
                Ok(None) | Err(_) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
            }
        };
        // The receiver is gone only if the plan is.
        let _ = exits.send(ProcessExit { name, status, took: started.elapsed(), cpu });
    });
}

/// User and system time of a process and of the children it has waited for (proc_pid_stat(5), fields 14 to 17).
fn cpu_time(process: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name is in parentheses and may contain any character.
    let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(4);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(ticks * 10))
}

fn failed_to_start(job: CheckJob, error: &std::io::Error) -> JobResult {
    println!("{:>8} s  FAILED  {}: {error}\n  command: {}", 0, job.name, job.again);
    JobResult { output: error.to_string(), outcome: JobOutcome::Failed, ..not_started(job) }
}

fn not_started(job: CheckJob) -> JobResult {
    let (took, cpu) = (Duration::ZERO, Duration::ZERO);
    JobResult { name: job.name, outcome: JobOutcome::NotStarted, took, cpu, output: String::new() }
}

/// Interval between checks whether a process has ended.
const POLL: Duration = Duration::from_millis(20);
/// Lines of the log of a failed job that are shown.
const LINES_OF_FAILED: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> CheckJob {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        CheckJob::new(name, command)
    }

    fn plan(name: &str, slots: usize) -> JobPlan {
        let dir = std::env::temp_dir().join(format!("xtask-plan-{name}-{}", std::process::id()));
        JobPlan::new(&dir, slots).unwrap()
    }

    fn outcome(results: &[JobResult], name: &str) -> JobOutcome {
        results.iter().find(|result| result.name == name).unwrap().outcome
    }

    #[test]
    fn jobs_start_after_their_needs_and_the_longest_first() {
        let mut plan = plan("order", 1);
        plan.add(shell("c", "echo c").needs("b"));
        plan.add(shell("a", "echo a").expected(1.0));
        plan.add(shell("b", "echo b").expected(9.0));
        let results = plan.run(|_| Vec::new());
        let order: Vec<&str> = results.iter().map(|result| result.output.trim()).collect();
        assert_eq!(order, ["b", "a", "c"]);
    }

    #[test]
    fn failure_stops_only_jobs_that_need_it() {
        let mut plan = plan("failure", 2);
        plan.add(shell("bad", "exit 3"));
        plan.add(shell("after", "true").needs("bad"));
        plan.add(shell("last", "true").needs("after"));
        plan.add(shell("other", "true"));
        let results = plan.run(|_| Vec::new());
        assert_eq!(outcome(&results, "bad"), JobOutcome::Failed);
        assert_eq!(outcome(&results, "after"), JobOutcome::NotStarted);
        assert_eq!(outcome(&results, "last"), JobOutcome::NotStarted);
        assert_eq!(outcome(&results, "other"), JobOutcome::Passed);
    }

    #[test]
    fn a_result_may_add_jobs() {
        let mut plan = plan("more", 1);
        plan.add(shell("build", "true"));
        let results = plan.run(|result| match result.name.as_str() {
            "build" => vec![shell("test", "echo tested").needs("build")],
            _ => Vec::new(),
        });
        assert_eq!(results[1].output, "tested\n");
    }

    #[test]
    fn a_job_that_hangs_is_killed() {
        let mut plan = plan("hang", 1);
        plan.add(CheckJob { timeout: Duration::ZERO, ..shell("hang", "exec sleep 1000") });
        assert_eq!(outcome(&plan.run(|_| Vec::new()), "hang"), JobOutcome::TimedOut);
    }

    #[test]
    fn nothing_starts_after_the_time_is_up() {
        let mut plan = plan("until", 1);
        plan.until = Some(Instant::now());
        plan.add(shell("late", "true"));
        assert_eq!(outcome(&plan.run(|_| Vec::new()), "late"), JobOutcome::NotStarted);
    }
}
