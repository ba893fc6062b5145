//! `cargo book build | check | serve`.

use book::{Book, BookError, Problem, Server};
use clap::{Parser, Subcommand};
use std::path::Path;
use std::process::ExitCode;

/// Build, check or serve the book.
#[derive(Parser)]
#[command(name = "cargo book", bin_name = "cargo book")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Render the pages into book/book
    Build,
    /// Build, then look for broken links, missing assets and stubs
    Check,
    /// Build, then serve the pages to this machine
    Serve {
        /// The port on localhost
        #[arg(long, default_value_t = 3000)]
        port: u16,
    },
}

fn main() -> ExitCode {
    match run(&Args::parse().command) {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in &problems {
                eprintln!("{problem}");
            }
            eprintln!("{} problems", problems.len());
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(command: &Command) -> Result<Vec<Problem>, BookError> {
    let book = Book::at(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let output = book.output();
    book.build(&output)?;
    match command {
        Command::Build => println!("built book/book/index.html"),
        Command::Check => {
            let problems = book.check(&output)?;
            if problems.is_empty() {
                println!("book/book: no problem found");
            }
            return Ok(problems);
        }
        Command::Serve { port } => {
            let server = Server::bind(&output, *port)?;
            println!("http://{}/ (Ctrl-C ends it)", server.address());
            server.run();
        }
    }
    Ok(Vec::new())
}
