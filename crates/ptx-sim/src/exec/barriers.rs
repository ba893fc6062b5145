//! The sixteen barriers of a block (PTX ISA, "bar, barrier").
//!
//! A warp has come to a barrier when all its live lanes have; it counts as 32 threads, as in the ISA. Threads that have
//! exited are not waited for by barriers of all threads. Barriers of all threads are also held against CUDA's rule for
//! `__syncthreads`: where the PTX has source lines, all warps come to it from the same one.

use super::Trouble;
use super::block::Block;
use super::warp::{Waits, Warp};
use crate::clock::Clock;
use crate::fault::FaultKind;
use crate::lanes::{ALL, LANES, Mask, lanes};
use crate::program::{Action, Barrier, BarrierKind, Reduced};
use crate::ptx::Loc;

/// Barriers of a block.
const BARRIERS: u64 = 16;

#[derive(Default)]
pub(super) struct Barriers([State; BARRIERS as usize]);

/// What has come to a barrier since it last completed.
#[derive(Default)]
struct State {
    /// Lanes by warp; empty where nothing has come.
    arrived: Vec<Mask>,
    /// Of those, the ones that wait, and at which step.
    waiting: Vec<(usize, Mask, u32)>,
    /// Threads that the first to come wants; `None` for all.
    threads: Option<u32>,
    loc: Option<Loc>,
    /// What those knew who came without waiting.
    released: Clock,
    /// What those who came do there: those who reduce all do the same.
    reduces: Option<&'static str>,
    /// Lanes whose predicate holds.
    held: u32,
    came: u32,
}

impl Block<'_, '_> {
    /// A group comes to a barrier.
    pub(super) fn barrier(
        &mut self,
        warp: usize,
        place: usize,
        barrier: &Barrier,
        active: Mask,
    ) -> Result<(), Trouble> {
        let group = self.warps[warp].groups[place];
        if barrier.aligned && active != self.warps[warp].live {
            self.warps[warp].groups[place].waits = Waits::Lanes;
            return Ok(());
        }
        self.grid.count_step(group.step, active);
        self.progress += 1;
        let id = self.uniform(warp, barrier.id, active, "barriers")?;
        if id >= BARRIERS {
            return Err(Trouble::new(FaultKind::Barrier, format!("found barrier {id}, wanted 0 to 15")));
        }
        let threads = match barrier.threads {
            None => None,
            Some(threads) => Some(self.uniform(warp, threads, active, "numbers of threads")? as u32),
        };
        self.arrive(warp, id as usize, threads, active, group.step)?;
        let state = &mut self.barriers.0[id as usize];
        let reduces = barrier.kind.reduces();
        if state.came > 0 && state.reduces != reduces {
            let told =
                |reduces: Option<&str>| reduces.map_or("without a reduction".into(), |what| format!("with {what}"));
            let what = format!("barrier {id}: found some that come {}, others {}", told(state.reduces), told(reduces));
            return Err(Trouble::new(FaultKind::Barrier, what));
        }
        state.reduces = reduces;
        if let BarrierKind::Reduce { of, .. } = barrier.kind {
            state.held += (self.warps[warp].registers.holds(of) & active).count_ones();
        }
        state.came += active.count_ones();
        if barrier.kind == BarrierKind::Arrive {
            for lane in lanes(active) {
                self.clocks.release(warp * LANES + lane, &mut state.released);
            }
            self.warps[warp].go(place, active, group.step + 1);
        } else {
            state.waiting.push((warp, active, group.step));
            self.warps[warp].groups[place].waits = Waits::Barrier(id as u8);
        }
        self.complete(id as usize);
        Ok(())
    }

    /// A value that all lanes must agree on.
    fn uniform(&self, warp: usize, source: crate::lanes::Source, active: Mask, what: &str) -> Result<u64, Trouble> {
        let registers = &self.warps[warp].registers;
        let value = registers.lane(source, active.trailing_zeros() as usize);
        match lanes(active).find(|lane| registers.lane(source, *lane) != value) {
            None => Ok(value),
            Some(lane) => {
                let other = registers.lane(source, lane);
                let what = format!("lanes of a warp name different {what}: {value} and {other}");
                Err(Trouble::new(FaultKind::Barrier, what).lane(lane))
            }
        }
    }

    fn arrive(&mut self, warp: usize, id: usize, threads: Option<u32>, active: Mask, step: u32) -> Result<(), Trouble> {
        let refuse = |what: String| Err(Trouble::new(FaultKind::Barrier, format!("barrier {id}: {what}")));
        let loc = self.grid.program.steps[step as usize].loc;
        let warps = self.warps.len();
        let state = &mut self.barriers.0[id];
        if let Some(threads) = threads
            && (threads == 0 || !threads.is_multiple_of(LANES as u32) || threads as usize > warps * LANES)
        {
            return refuse(format!("found {threads} threads, wanted a multiple of 32 up to those of the block"));
        }
        if state.arrived.is_empty() {
            state.arrived = vec![0; warps];
            (state.threads, state.loc) = (threads, loc);
        }
        // As many as there are is all of them.
        let some = |threads: Option<u32>| threads.filter(|threads| *threads as usize != warps * LANES);
        if some(state.threads) != some(threads) {
            let told = |threads: Option<u32>| threads.map_or("all".into(), |threads| threads.to_string());
            return refuse(format!(
                "found {} threads wanted by some, {} by others",
                told(state.threads),
                told(threads)
            ));
        }
        if threads.is_none()
            && let (Some(first), Some(here)) = (state.loc, loc)
            && (first.file, first.line) != (here.file, here.line)
        {
            return Err(Trouble::new(
                FaultKind::Divergence,
                format!(
                    "barrier {id}: others wait for all threads at line {}, these at line {}",
                    first.line, here.line
                ),
            ));
        }
        if state.arrived[warp] & active != 0 {
            return refuse("found lanes that come twice before it is complete".into());
        }
        state.arrived[warp] |= active;
        Ok(())
    }

    /// Barriers of all threads may be complete once threads exit.
    pub(super) fn complete_barriers(&mut self) {
        for id in 0..BARRIERS as usize {
            if !self.barriers.0[id].arrived.is_empty() {
                self.complete(id);
            }
        }
    }

    /// Lets those go on who wait at a barrier, if all that it wants have come.
    fn complete(&mut self, id: usize) {
        let state = &mut self.barriers.0[id];
        if !state.is_complete(&self.warps) {
            return;
        }
        let State { waiting, released, held, came, .. } = std::mem::take(state);
        let threads = waiting.iter().flat_map(|(warp, mask, _)| lanes(*mask).map(move |lane| warp * LANES + lane));
        for thread in threads.clone() {
            self.clocks.acquire(thread, &released);
        }
        self.clocks.synchronise(threads);
        for (warp, mask, step) in waiting {
            if let Action::Barrier(Barrier { kind: BarrierKind::Reduce { to, .. }, .. }) =
                &self.grid.program.steps[step as usize].action
            {
                let registers = &mut self.warps[warp].registers;
                let truth = |holds: bool| if holds { ALL } else { 0 };
                match *to {
                    Reduced::Count(target) => registers.put(target, mask, [held; LANES]),
                    Reduced::And(predicate) => registers.put_predicate(predicate, mask, truth(held == came)),
                    Reduced::Or(predicate) => registers.put_predicate(predicate, mask, truth(held != 0)),
                }
            }
            let place = self.place_of(warp, mask);
            self.warps[warp].go(place, mask, step + 1);
        }
    }
}

impl State {
    /// Warps all of whose live lanes have come.
    fn whole(&self, warps: &[Warp]) -> usize {
        let came = |(arrived, warp): &(&Mask, &Warp)| **arrived != 0 && warp.live & !**arrived == 0;
        self.arrived.iter().zip(warps).filter(came).count()
    }

    fn is_complete(&self, warps: &[Warp]) -> bool {
        match self.threads {
            Some(threads) => self.whole(warps) * LANES >= threads as usize,
            None => self.arrived.iter().zip(warps).all(|(arrived, warp)| warp.live & !*arrived == 0),
        }
    }
}

impl Barriers {
    /// What those wait for who wait at a barrier.
    pub(super) fn told(&self, id: u8, warps: &[Warp]) -> String {
        let state = &self.0[usize::from(id)];
        let came = state.whole(warps) * LANES;
        match state.threads {
            Some(threads) => format!("barrier {id}, where {came} of {threads} threads have come"),
            None => format!("barrier {id}, where {came} threads have come"),
        }
    }
}
