//! Whether the policies agree, bit for bit.

use super::Served;
use super::trace::Request;

/// Compares, by its hash, o of every token that at least two policies computed, and of every token computed again: how many
/// tokens that were; or who disagrees, and where.
pub(crate) fn compare(trace: &[Request], served: &[Served]) -> Result<usize, String> {
    let at = |request: usize, position: usize| format!("o of token {position} of {}", trace[request].id);
    for Served { policy, outcome } in served {
        if let Some((request, position)) = outcome.unlike {
            return Err(format!("{policy}: {} was another when it was computed again", at(request, position)));
        }
    }
    let mut compared = 0;
    for request in 0..trace.len() {
        for position in 0.. {
            let there = |served: &Served| served.outcome.requests[request].rows.len() > position;
            if !served.iter().any(there) {
                break;
            }
            let row = |served: &Served| *served.outcome.requests[request].rows.get(position)?;
            let mut rows = served.iter().filter_map(|served| Some((served.policy, row(served)?)));
            let first = rows.next();
            for (policy, row) in rows {
                if let Some((before, _)) = first.filter(|first| first.1 != row) {
                    return Err(format!("{}: found another in {policy} than in {before}", at(request, position)));
                }
                compared += 1;
            }
        }
    }
    Ok(compared)
}
