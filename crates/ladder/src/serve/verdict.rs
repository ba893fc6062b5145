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
        let rows = |served: &Served| served.outcome.requests[request].rows.len();
        for position in 0..served.iter().map(rows).max().unwrap_or(0) {
            let row = |served: &Served| *served.outcome.requests[request].rows.get(position)?;
            let mut rows = served.iter().filter_map(|served| Some((served.policy, row(served)?)));
            let Some((first, wanted)) = rows.next() else { continue };
            for (policy, found) in rows {
                if found != wanted {
                    return Err(format!("{}: found another in {policy} than in {first}", at(request, position)));
                }
                compared += 1;
            }
        }
    }
    Ok(compared)
}
