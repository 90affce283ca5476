//! The `hiroma` command: starts, watches and controls programs with far memory. This crate only
//! converts between the user and the library crates, which make the decisions.

mod bench;
mod completions;
mod ctl;
mod demo;
mod doctor;
mod hot;
mod man;
mod pool;
mod quiet;
mod rights;
mod run;
mod serve;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use hiroma_command::{REFUSED, exit_code};
use rustix::process::{Resource, getrlimit};

/// Far memory and huge pages for unmodified Linux programs.
#[derive(Parser)]
#[command(name = "hiroma", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  hiroma doctor                                what this machine allows
  hiroma run --local 1G -- sort -S 4G big.txt  far memory is compressed, then in a file
  hiroma serve --memory 8G                     lend memory to others
  hiroma run --local 1G --store tcp://127.0.0.1:7070 -- redis-server
  hiroma pool --pool 10.0.0.1:7070             who lends memory, and who uses it
  hiroma ctl PID --local 2G                    change the limit of a running program
  hiroma hot manage --pid PID                  huge pages exactly where a process is hot
  hiroma quiet measure                         who steals time from programs
  hiroma sim compare cluster.toml              which placement policy suits a cluster";

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Serve(serve::Args),
    Pool(pool::Args),
    Ctl(ctl::Args),
    Doctor(doctor::Args),
    Hot(hot::HotArgs),
    Bench(bench::Args),
    Quiet(quiet::QuietArgs),
    Sim(Box<sim::SimArgs>),
    /// Sort a large text natively and with 30 % of the memory it needs, and compare
    Demo(demo::Args),
    #[command(hide = true)]
    Completions(completions::Args),
    /// Write the man pages
    #[command(hide = true)]
    Man(man::Args),
}

/// Shown to a user who runs `hiroma` without arguments.
const FIRST: &str = "\
hiroma lets a program work with more data than there is memory for.

  hiroma doctor                          what this machine allows
  hiroma run --local 1G -- PROGRAM       run a program with 1 GiB of local memory
  hiroma ctl PID                         what a running program does; --local 2G changes its limit
  hiroma serve --memory 8G               lend memory to programs on other machines
  hiroma hot manage --pid PID            huge pages where a process is hot

hiroma help tells of everything else.";

/// The first thread's stack may be as small as its limit (`ulimit -s`); this is enough, and what the
/// others have.
const STACK_BYTES: usize = 2 << 20;

fn main() -> ExitCode {
    let allowed = getrlimit(Resource::Stack).current.unwrap_or(u64::MAX);
    if allowed >= STACK_BYTES as u64 {
        return command();
    }
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(command);
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            eprintln!(
                "hiroma: `ulimit -s` allows {allowed} bytes of stack, and no thread with more: {error}"
            );
            ExitCode::from(REFUSED)
        }
    }
}

fn command() -> ExitCode {
    if std::env::args_os().len() < 2 {
        eprintln!("{FIRST}");
        return ExitCode::from(REFUSED);
    }
    let result = match Cli::parse().command {
        Command::Run(args) => run::main(*args),
        Command::Serve(args) => serve::main(args),
        Command::Pool(args) => pool::main(&args),
        Command::Ctl(args) => ctl::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Hot(args) => hot::run(args),
        Command::Bench(args) => bench::main(&args),
        Command::Quiet(args) => quiet::run(args),
        Command::Sim(args) => sim::run(*args),
        Command::Demo(args) => demo::main(args),
        Command::Completions(args) => completions::main(args),
        Command::Man(args) => man::main(args),
    };
    exit_code(result)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_options_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
