//! A block of threads: its warps, their memory, and whose turn it is.

use super::barriers::Barriers;
use super::bulk::Bulk;
use super::cluster::Cluster;
use super::copies::InFlight;
use super::mbarrier::{self, Mbarriers};
use super::registers::Pool;
use super::schedule::Draw;
use super::signals::{Fences, Signals};
use super::warp::{Waits, Warp};
use super::warpgroup::{self, WARPS};
use super::{Grid, Trouble};
use crate::clock::{Clocks, Proxied};
use crate::fault::{Fault, FaultKind, Site, SourceLine};
use crate::lanes::{ALL, LANES, Mask, lanes};
use crate::memory::Bytes;
use crate::program::{Action, Mbarrier, Operation, Step};
use crate::races::{By, Kind, Races};

/// After each turn copies land, one for each time that one chance in so many comes up in a row.
const LANDS: u32 = 2;

/// How often those who wait for phases are told that these are not over, with nothing happening in between: one who counts
/// may do something else after some times.
const PATIENCE: u32 = 64;

pub(super) struct Block<'g, 'a> {
    pub(super) grid: &'g mut Grid<'a>,
    pub(super) at: [u32; 3],
    pub(super) number: u32,
    pub(super) draw: Draw,
    pub(super) warps: Vec<Warp>,
    pub(super) shared: Bytes,
    pub(super) shared_races: Races,
    /// Local memory, a thread's after another's.
    pub(super) local: Bytes,
    pub(super) clocks: Clocks,
    pub(super) barriers: Barriers,
    pub(super) cluster: Cluster,
    /// By address of shared memory.
    pub(super) signals: Signals,
    pub(super) fences: Fences,
    pub(super) copies: Vec<InFlight>,
    /// Of the whole ones; none where the program has no `wgmma`.
    pub(super) warpgroups: Vec<warpgroup::Group>,
    pub(super) mbarriers: Mbarriers,
    pub(super) bulk: Bulk,
    pub(super) registers: Pool,
    /// What happened so far that others may have waited for.
    pub(super) progress: u64,
    /// What had happened when those who wait for phases were last told that they wait in vain, and how often they were told.
    told: (u64, u32),
    /// Instructions so far.
    pub(super) time: u64,
}

impl<'g, 'a> Block<'g, 'a> {
    pub(super) fn new(grid: &'g mut Grid<'a>, at: [u32; 3], number: u64, draw: Draw) -> Self {
        let (program, shape) = (grid.program, grid.shape);
        let threads = shape.block.iter().product::<u32>() as usize;
        let warps = threads.div_ceil(LANES);
        let warpgroups = if program.touches.is_empty() { 0 } else { warps / WARPS };
        Block {
            at,
            number: number as u32,
            draw,
            warps: (0..warps).map(|warp| Warp::new(program, shape, at, warp)).collect(),
            shared: Bytes::new((program.shared_bytes + shape.shared_bytes) as usize),
            shared_races: Races::new(Proxied::Shared),
            local: Bytes::new(threads * program.local_bytes as usize),
            clocks: Clocks::new(threads, mbarrier::tickets(program) + warpgroups.next_multiple_of(LANES)),
            barriers: Barriers::default(),
            cluster: Cluster::default(),
            signals: Signals::default(),
            fences: Fences::default(),
            copies: Vec::new(),
            warpgroups: (0..warpgroups).map(|_| warpgroup::Group::new(program.narrow)).collect(),
            mbarriers: Mbarriers::default(),
            bulk: Bulk::default(),
            registers: Pool::new(program, warps),
            progress: 0,
            told: (0, 0),
            time: 0,
            grid,
        }
    }

    /// Gives warps turns until all have exited.
    pub(super) fn run(mut self) -> Result<(), Box<Fault>> {
        // A block takes time to make, whatever it does then.
        self.grid.steps_left =
            self.grid.steps_left.saturating_sub((self.shared.len() as u64 + self.local.len() as u64) >> 12);
        let mut ready: Vec<usize> = Vec::new();
        loop {
            ready.clear();
            ready.extend((0..self.warps.len()).filter(|warp| self.is_ready(*warp)));
            if ready.is_empty() {
                if self.unstick()? {
                    continue;
                }
                break;
            }
            let warp = ready[self.draw.one_of(ready.len())];
            let mut left = self.draw.turn();
            while left > 0
                && let Some(place) = self.warps[warp].next(&mut self.draw)
            {
                self.step(warp, place)?;
                left -= 1;
            }
            if left == 0 {
                self.draw.turn_is_over();
            }
            while !self.copies.is_empty() && self.draw.once_in(LANDS) {
                self.land_one();
            }
            for number in 0..self.warpgroups.len() {
                while !self.warpgroups[number].products.is_empty() && self.draw.once_in(LANDS) {
                    self.compute_product(number);
                }
            }
            while self.bulk.is_under_way() && self.draw.once_in(self.draw.bulk_lands()) {
                self.land_bulk()?;
            }
        }
        if self.warps.iter().any(|warp| warp.live != 0) {
            return Err(self.stuck());
        }
        self.end_registers()?;
        self.end_bulk()
    }

    fn is_ready(&self, warp: usize) -> bool {
        self.warps[warp].groups.iter().any(|group| group.waits.is_over())
    }

    /// All wait. A bulk copy lands, or else those who wait for phases are told that they wait in vain, some times after each
    /// thing that happens. False where there is nothing of that kind to do.
    fn unstick(&mut self) -> Result<bool, Box<Fault>> {
        if self.bulk.is_under_way() && self.warps.iter().any(|warp| warp.live != 0) {
            self.land_bulk()?;
            return Ok(true);
        }
        if self.told.0 != self.progress {
            self.told = (self.progress, 0);
        }
        if self.told.1 == PATIENCE {
            return Ok(false);
        }
        self.told.1 += 1;
        let waits = |waits| matches!(waits, Waits::Phase(_));
        let roused = self.warps.iter_mut().map(|warp| warp.rouse(waits, Waits::Expired));
        Ok(roused.filter(|any| *any).count() > 0)
    }

    /// One instruction of a group of a warp.
    fn step(&mut self, warp: usize, place: usize) -> Result<(), Box<Fault>> {
        let program = self.grid.program;
        let group = self.warps[warp].groups[place];
        let step = &program.steps[group.step as usize];
        if self.grid.steps_left == 0 {
            let trouble =
                Trouble::new(FaultKind::StepLimit, "more instructions than the launch allows: it may never end");
            return Err(self.fault(warp, group.step, trouble));
        }
        self.grid.steps_left -= 1;
        self.time += 1;
        let active = match step.guard {
            None => group.lanes,
            Some(guard) => group.lanes & self.warps[warp].registers.holds(guard),
        };
        self.take(warp, place, step, active).map_err(|trouble| self.fault(warp, group.step, trouble))
    }

    fn take(&mut self, warp: usize, place: usize, step: &Step, active: Mask) -> Result<(), Trouble> {
        let group = self.warps[warp].groups[place];
        let (here, next) = (group.step, group.step + 1);
        let met = match step.members {
            Some(_) if step.whole_warp && active != 0 && self.warps[warp].live != ALL => {
                let what = "found lanes that are not there, or have exited, wanted all 32";
                return Err(Trouble::new(FaultKind::Divergence, what));
            }
            Some(members) if active != 0 => match self.met(warp, place, members, active)? {
                Some(met) => met,
                None => return Ok(()),
            },
            _ => active,
        };
        let rest = group.lanes & !active;
        match &step.action {
            _ if active == 0 => {}
            // Those whose guard says no go on alone, before the others wait.
            Action::Barrier(_)
            | Action::ClusterBarrier(_)
            | Action::Mbarrier(Mbarrier { operation: Operation::Wait(_), .. })
                if rest != 0 =>
            {
                self.warps[warp].go(place, rest, next);
                return Ok(());
            }
            Action::Barrier(barrier) => return self.barrier(warp, place, barrier, active),
            Action::ClusterBarrier(barrier) => return self.cluster_barrier(warp, place, *barrier, active),
            Action::Mbarrier(Mbarrier { address, operation: Operation::Wait(wait) }) => {
                return self.wait_for_phase(warp, place, address, *wait, active);
            }
            Action::Registers { count, grows } => return self.change_registers(warp, place, *count, *grows),
            _ => {}
        }
        self.grid.count_step(here, met);
        if met != 0 {
            self.touch(warp, here, self.grid.program.touches.of(here))?;
        }
        match &step.action {
            _ if met == 0 => {}
            Action::Branch { target } => {
                self.warps[warp].go(place, active, *target);
                self.go_on(warp, rest, next);
                return Ok(());
            }
            Action::Exit => {
                self.progress += 1;
                self.warps[warp].exit(place, active);
                self.go_on(warp, rest, next);
                self.complete_barriers();
                self.complete_cluster();
                return Ok(());
            }
            Action::Warpgroup(action) => return self.warpgroup(warp, place, action),
            Action::Compute(compute) => compute(&mut self.warps[warp].registers, met),
            action => self.act(warp, action, here, met)?,
        }
        self.warps[warp].go(place, met | rest, next);
        Ok(())
    }

    /// Moves lanes, if there are any, that may not be where they were among the groups.
    fn go_on(&mut self, warp: usize, lanes: Mask, step: u32) {
        if lanes != 0 {
            let place = self.place_of(warp, lanes);
            self.warps[warp].go(place, lanes, step);
        }
    }

    /// What an instruction does beyond registers.
    fn act(&mut self, warp: usize, action: &Action, step: u32, active: Mask) -> Result<(), Trouble> {
        let by = By { block: self.number, warp: warp as u16, lane: 0, pc: step, epoch: self.clocks.epoch(warp) };
        self.progress += u64::from(action.is_seen());
        match action {
            Action::OrderWarp => self.clocks.synchronise(lanes(active).map(|lane| warp * LANES + lane)),
            Action::Fence => lanes(active).for_each(|lane| self.fence(warp * LANES + lane)),
            Action::Load(load) => self.load(warp, load, active, by)?,
            Action::Store(store) => self.store(warp, store, active, by)?,
            Action::Atomic(atomic) => self.atomic(warp, atomic, active, by)?,
            Action::Copy(copy) => self.begin_copies(warp, copy, active, by)?,
            Action::CommitCopies => lanes(active).for_each(|lane| self.warps[warp].copy_group[lane] += 1),
            Action::WaitCopies(left) => self.wait_for_copies(warp, *left, active, by)?,
            Action::LoadMatrix(matrix) => self.load_matrix(warp, matrix, by)?,
            Action::StoreMatrix(matrix) => self.store_matrix(warp, matrix, by)?,
            Action::Clock(target) => {
                let time = self.time;
                self.warps[warp].registers.put(*target, active, [time; LANES]);
            }
            Action::FenceProxy(memories) => {
                lanes(active).for_each(|lane| self.clocks.fence_proxy(warp * LANES + lane, memories));
            }
            Action::FenceMbarriers => lanes(active).for_each(|lane| self.fence_mbarriers(warp, lane)),
            Action::Mbarrier(mbarrier) => self.mbarrier(warp, mbarrier, active, by)?,
            Action::Bulk(copy) => self.bulk_copies(warp, copy, active, by)?,
            Action::CommitBulk => lanes(active).for_each(|lane| self.warps[warp].bulk_group[lane] += 1),
            Action::WaitBulk { left, reads } => self.wait_for_bulk(warp, *left, *reads, active, by)?,
            Action::Trap => return Err(Trouble::new(FaultKind::Trap, "the kernel stopped itself")),
            Action::Nothing => {}
            Action::Compute(_)
            | Action::Branch { .. }
            | Action::Exit
            | Action::Barrier(_)
            | Action::ClusterBarrier(_)
            | Action::Registers { .. }
            | Action::Warpgroup(_) => {}
        }
        Ok(())
    }

    /// The lanes of a group that meet at a `.sync` instruction, once all that its mask names are there; until then, the group
    /// waits and there are none.
    fn met(
        &mut self,
        warp: usize,
        place: usize,
        members: crate::lanes::Source,
        active: Mask,
    ) -> Result<Option<Mask>, Trouble> {
        let here = &mut self.warps[warp];
        let first = active.trailing_zeros() as usize;
        let mask = here.registers.lane(members, first) as Mask;
        if mask >> first & 1 == 0 {
            let what = format!("the mask {mask:#010x} does not name the lane itself");
            return Err(Trouble::new(FaultKind::Divergence, what).lane(first));
        }
        let wanted = mask & here.live;
        if wanted & !active != 0 {
            here.groups[place].waits = Waits::Lanes;
            // Those whose guard says no go on alone.
            let others = here.groups[place].lanes & !active;
            if others != 0 {
                let next = here.groups[place].step + 1;
                here.go(place, others, next);
            }
            return Ok(None);
        }
        if let Some(other) = lanes(wanted).find(|lane| here.registers.lane(members, *lane) as Mask != mask) {
            let what = format!("lanes that meet name different masks: lane {first} has {mask:#010x}");
            return Err(Trouble::new(FaultKind::Divergence, what).lane(other));
        }
        Ok(Some(wanted))
    }

    /// The group that has these lanes.
    pub(super) fn place_of(&self, warp: usize, lanes: Mask) -> usize {
        self.warps[warp].groups.iter().position(|group| group.lanes & lanes != 0).unwrap_or(0)
    }

    /// A fault at a step of a warp.
    pub(super) fn fault(&self, warp: usize, step: u32, trouble: Trouble) -> Box<Fault> {
        let Trouble { kind, what, lane, earlier } = trouble;
        let earlier = earlier.map(|earlier| {
            let [x, y, _] = self.grid.shape.grid.map(u64::from);
            let number = u64::from(earlier.block);
            let block = [number % x, number / x % y, number / x / y].map(|axis| axis as u32);
            let (warp, lane) = match earlier.kind {
                // Of what a warpgroup does together, its first warp stands for all.
                Kind::Operand if self.clocks.is_ticket(earlier.warp) => {
                    (WARPS as u16 * u16::from(earlier.lane), u8::MAX)
                }
                _ if self.clocks.is_ticket(earlier.warp) => self.issuer(earlier),
                _ => (earlier.warp, earlier.lane),
            };
            let site = self.site(block, warp.into(), earlier.pc, Some(lane.into()).filter(|lane| *lane < LANES as u32));
            (format!("with the {}", earlier.kind.noun()), site)
        });
        let at = Some(self.site(self.at, warp as u32, step, lane.map(|lane| lane as u32)));
        Box::new(Fault { kind, kernel: self.grid.program.name.clone(), what, at, earlier, others: Vec::new() })
    }

    fn site(&self, block: [u32; 3], warp: u32, step: u32, lane: Option<u32>) -> Site {
        let program = self.grid.program;
        let step = &program.steps[step as usize];
        let file = |number: u32| {
            let known = program.files.iter().find(|(known, _)| *known == number);
            known.map_or_else(|| format!("file {number}"), |(_, name)| name.clone())
        };
        let source = step.loc.map(|loc| SourceLine {
            file: file(loc.file),
            line: loc.line,
            called_at: loc.inlined_at.map(|(number, line)| (file(number), line)),
        });
        let instruction = program.mnemonics[step.mnemonic as usize].clone();
        Site { source, ptx_line: step.line, instruction, block, warp, lane }
    }

    /// Nothing goes on: which lanes wait for what.
    fn stuck(&self) -> Box<Fault> {
        let waiting = |warp: usize| self.warps[warp].groups.iter().map(move |group| (warp, group));
        let all = (0..self.warps.len()).flat_map(waiting);
        let others: Vec<String> = all
            .clone()
            .map(|(warp, group)| {
                let site = self.site(self.at, warp as u32, group.step, None);
                let waits = match group.waits {
                    Waits::Barrier(id) => self.barriers.told(id, &self.warps),
                    Waits::Warpgroup => "other warps of their warpgroup".into(),
                    Waits::Cluster => self.cluster.told(&self.warps),
                    Waits::Phase(at) => self.mbarriers.told(at),
                    Waits::Registers(count) => self.registers.told(warp, count),
                    _ => "other lanes of their warp".into(),
                };
                format!("lanes {:#010x} wait for {waits} at {site}", group.lanes)
            })
            .collect();
        // Lanes that wait for one that waits for a phase wait for that.
        let phase = all.clone().find(|(_, group)| matches!(group.waits, Waits::Phase(_)));
        let apart = |waits| all.clone().find(|(_, group)| group.waits == waits);
        let apart = apart(Waits::Lanes).or_else(|| apart(Waits::Warpgroup)).filter(|_| phase.is_none());
        let (kind, what) = match apart {
            Some((_, group)) if group.waits == Waits::Lanes => {
                (FaultKind::Divergence, "lanes of a warp wait for lanes that do not come")
            }
            Some(_) => (FaultKind::Divergence, "warps of a warpgroup wait for warps that do not come"),
            None => (FaultKind::Deadlock, "warps wait for warps that do not come"),
        };
        let at = apart.or(phase).or_else(|| all.clone().next());
        let at = at.map(|(warp, group)| self.site(self.at, warp as u32, group.step, None));
        let kernel = self.grid.program.name.clone();
        Box::new(Fault { kind, kernel, what: what.into(), at, earlier: None, others })
    }
}
