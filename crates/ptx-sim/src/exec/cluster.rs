//! The barrier of a cluster (PTX ISA, "barrier.cluster"), of which a block is all there is here: threads arrive, and wait later.
//!
//! A thread that has arrived waits before it arrives again. Threads that have exited are not waited for.

use super::Trouble;
use super::block::Block;
use super::warp::{Waits, Warp};
use crate::clock::Clock;
use crate::fault::FaultKind;
use crate::lanes::{LANES, Mask, lanes};
use crate::program::ClusterBarrier;

#[derive(Default)]
pub(super) struct Cluster {
    /// By warp: lanes that have arrived, of those for whom the barrier is not complete.
    came: Vec<Mask>,
    /// By warp: lanes that have arrived and not waited since.
    owes: Vec<Mask>,
    /// What those knew who arrived.
    arrived: Clock,
    /// What those knew who arrived before the barrier was last complete.
    over: Clock,
}

impl Cluster {
    pub(super) fn told(&self, warps: &[Warp]) -> String {
        let live: u32 = warps.iter().map(|warp| warp.live.count_ones()).sum();
        let came = |(came, warp): (&Mask, &Warp)| (came & warp.live).count_ones();
        let came: u32 = self.came.iter().zip(warps).map(came).sum();
        format!("the barrier of the cluster, where {came} of {live} threads have arrived")
    }
}

impl Block<'_, '_> {
    /// Lanes arrive at the barrier, or wait for it.
    pub(super) fn cluster_barrier(
        &mut self,
        warp: usize,
        place: usize,
        barrier: ClusterBarrier,
        active: Mask,
    ) -> Result<(), Trouble> {
        let group = self.warps[warp].groups[place];
        if barrier.aligned && active != self.warps[warp].live {
            self.warps[warp].groups[place].waits = Waits::Lanes;
            return Ok(());
        }
        let warps = self.warps.len();
        let cluster = &mut self.cluster;
        cluster.came.resize(warps, 0);
        cluster.owes.resize(warps, 0);
        let owes = cluster.owes[warp];
        if barrier.arrives == (owes & active != 0) || !barrier.arrives && active & !owes != 0 {
            let wanted = if barrier.arrives { "a wait between two arrivals" } else { "an arrival before a wait" };
            let what = format!("the barrier of the cluster: found lanes {owes:#010x} that wait next, wanted {wanted}");
            return Err(Trouble::new(FaultKind::Barrier, what));
        }
        if !barrier.arrives && cluster.came[warp] & active != 0 {
            self.warps[warp].groups[place].waits = Waits::Cluster;
            return Ok(());
        }
        cluster.owes[warp] ^= active;
        for thread in lanes(active).map(|lane| warp * LANES + lane) {
            match barrier.arrives {
                true if barrier.orders => self.clocks.release(thread, &mut cluster.arrived),
                true => {}
                false => self.clocks.acquire(thread, &cluster.over),
            }
        }
        if barrier.arrives {
            cluster.came[warp] |= active;
            self.progress += 1;
        }
        self.grid.count_step(group.step, active);
        self.warps[warp].go(place, active, group.step + 1);
        self.complete_cluster();
        Ok(())
    }

    /// Lets those go on who wait, if all threads that have not exited have arrived.
    pub(super) fn complete_cluster(&mut self) {
        let cluster = &mut self.cluster;
        let all = cluster.came.iter().zip(&self.warps).all(|(came, warp)| warp.live & !came == 0);
        if !all || cluster.came.iter().all(|came| *came == 0) {
            return;
        }
        cluster.came.fill(0);
        cluster.over.join(&std::mem::take(&mut cluster.arrived));
        self.warps.iter_mut().for_each(|warp| {
            warp.rouse(|waits| waits == Waits::Cluster, Waits::Nothing);
        });
    }
}
