//! Loads, stores and atomics: bounds, alignment, initialisation and races of every lane's access, then the bytes.

use super::Trouble;
use super::block::Block;
use crate::fault::FaultKind;
use crate::lanes::{LANES, Lanes, Mask, Source, Target, lanes};
use crate::lower::{LOCAL_WINDOW, OWN_PARAMS, PARAM_WINDOW, SHARED_WINDOW, WIDEST_ACCESS};
use crate::program::{Address, Atomic, Extend, Load, Store};
use crate::ptx::Space;
use crate::races::{By, Conflict, Kind};

/// Where lanes access memory: a space, and an address in it.
type Places = Lanes<(Space, u64)>;

impl Block<'_, '_> {
    pub(super) fn load(&mut self, warp: usize, load: &Load, active: Mask, by: By) -> Result<(), Trouble> {
        let bytes = load.bytes as usize;
        let all = bytes * load.to.len();
        let places = self.places(warp, &load.address, active);
        self.count(&places, active, all, Kind::Read);
        let kind = if load.order.is_some() { Kind::AtomicRead } else { Kind::Read };
        for lane in lanes(active) {
            let (space, address) = places[lane];
            let mut data = [0; WIDEST_ACCESS];
            self.read((space, address), &mut data[..all], kind, By { lane: lane as u8, ..by })
                .map_err(|trouble| trouble.lane(lane))?;
            if let Some(order) = load.order {
                self.observe(warp, lane, space, address, order);
            }
            for (target, element) in load.to.iter().zip(data.chunks_exact(bytes)) {
                self.warps[warp].registers.put_lane(*target, lane, number(element, load.extend));
            }
        }
        Ok(())
    }

    pub(super) fn store(&mut self, warp: usize, store: &Store, active: Mask, by: By) -> Result<(), Trouble> {
        let bytes = store.bytes as usize;
        let all = bytes * store.from.len();
        let places = self.places(warp, &store.address, active);
        self.count(&places, active, all, Kind::Write);
        let kind = if store.order.is_some() { Kind::Atomic } else { Kind::Write };
        for lane in lanes(active) {
            let (space, address) = places[lane];
            let mut data = [0; WIDEST_ACCESS];
            for (source, element) in store.from.iter().zip(data.chunks_exact_mut(bytes)) {
                let bits = self.warps[warp].registers.lane(*source, lane).to_le_bytes();
                element.copy_from_slice(&bits[..bytes]);
            }
            self.write((space, address), &data[..all], kind, By { lane: lane as u8, ..by })
                .map_err(|trouble| trouble.lane(lane))?;
            if let Some(order) = store.order {
                self.signal(warp, lane, space, address, order);
            }
        }
        Ok(())
    }

    pub(super) fn atomic(&mut self, warp: usize, atomic: &Atomic, active: Mask, by: By) -> Result<(), Trouble> {
        let bytes = atomic.bytes as usize;
        let places = self.places(warp, &atomic.address, active);
        self.count(&places, active, bytes, Kind::Write);
        for lane in lanes(active) {
            let (space, address) = places[lane];
            let mut data = [0; WIDEST_ACCESS];
            let read = self.read((space, address), &mut data[..bytes], Kind::Atomic, By { lane: lane as u8, ..by });
            read.map_err(|trouble| trouble.lane(lane))?;
            let registers = &mut self.warps[warp].registers;
            let old = number(&data[..bytes], Extend::Zero);
            let operands = atomic.operands.map(|operand| registers.lane(operand, lane));
            let new = (atomic.update)(old, operands, space == Space::Shared).to_le_bytes();
            if let Some(target) = atomic.to {
                registers.put_lane(target, lane, old);
            }
            let written = self.write((space, address), &new[..bytes], Kind::Atomic, By { lane: lane as u8, ..by });
            written.map_err(|trouble| trouble.lane(lane))?;
            self.observe(warp, lane, space, address, atomic.order);
            self.signal(warp, lane, space, address, atomic.order);
        }
        Ok(())
    }

    /// Where each lane's access goes.
    pub(super) fn places(&self, warp: usize, address: &Address, active: Mask) -> Places {
        let base: Lanes<u64> = self.warps[warp].registers.get(address.base);
        let narrow = matches!(address.base, Source::Register(Target::Narrow(_)));
        let mut places = [(Space::Global, 0); LANES];
        for lane in lanes(active) {
            let at = base[lane].wrapping_add_signed(address.offset);
            let at = if narrow { at & u64::from(u32::MAX) } else { at };
            places[lane] = match address.space {
                Some(space) => (space, at),
                None => match at >> 56 << 56 {
                    SHARED_WINDOW => (Space::Shared, at - SHARED_WINDOW),
                    LOCAL_WINDOW => (Space::Local, at - LOCAL_WINDOW),
                    PARAM_WINDOW => (Space::Param, at - PARAM_WINDOW),
                    _ => (Space::Global, at),
                },
            };
        }
        places
    }

    /// Counts a request of a warp.
    fn count(&mut self, places: &Places, active: Mask, bytes: usize, kind: Kind) {
        let addresses = places.map(|(_, address)| address);
        let of = |space| lanes(active).filter(|lane| places[*lane].0 == space).fold(0, |mask, lane| mask | 1 << lane);
        let counters = &mut self.grid.counters;
        counters.shared.count(&addresses, of(Space::Shared), bytes as u32);
        let global = if matches!(kind, Kind::Read | Kind::AtomicRead) {
            &mut counters.global_reads
        } else {
            &mut counters.global_writes
        };
        global.count(&addresses, of(Space::Global), bytes as u32);
    }

    /// One lane reads.
    pub(super) fn read(
        &mut self,
        (space, address): (Space, u64),
        to: &mut [u8],
        kind: Kind,
        by: By,
    ) -> Result<(), Trouble> {
        aligned(address, to.len())?;
        let bytes = to.len() as u32;
        match space {
            Space::Shared => {
                let at = self.shared_at(address, bytes)?;
                let noted = self.shared_races.access(kind, address, bytes, &by, false, &self.clocks);
                noted.map_err(|conflict| Trouble::conflict("shared", conflict))?;
                self.shared.read(at, to).map_err(|missing| uninitialised("shared", missing as u64))
            }
            Space::Global | Space::Const => {
                let (data, at) =
                    self.grid.memory.allocation(address, bytes).map_err(|found| outside(address, bytes, found))?;
                data.read(at, to).map_err(|missing| uninitialised("global", address - at as u64 + missing as u64))?;
                let races = &mut self.grid.races;
                let noted = races.access(kind, address, bytes, &by, false, &self.clocks);
                noted.map_err(|conflict| Trouble::conflict("global", conflict))
            }
            Space::Param if address < OWN_PARAMS => {
                let end = (address as usize).saturating_add(to.len());
                let found = "parameters end before";
                let from = self.grid.params.get(address as usize..end).ok_or_else(|| outside(address, bytes, found))?;
                to.copy_from_slice(from);
                Ok(())
            }
            Space::Local | Space::Param => {
                let own = own_address(space, address);
                let at = self.local_at(by, own, bytes)?;
                self.local.read(at, to).map_err(|missing| uninitialised("local", own + (missing - at) as u64))
            }
        }
    }

    /// One lane writes.
    fn write(&mut self, (space, address): (Space, u64), from: &[u8], kind: Kind, by: By) -> Result<(), Trouble> {
        aligned(address, from.len())?;
        let bytes = from.len() as u32;
        match space {
            Space::Shared => {
                let at = self.shared_at(address, bytes)?;
                let same = self.shared.raw(at, from.len()) == from;
                let noted = self.shared_races.access(kind, address, bytes, &by, same, &self.clocks);
                noted.map_err(|conflict| Trouble::conflict("shared", conflict))?;
                self.shared.write(at, from);
                Ok(())
            }
            Space::Global => {
                let (data, at) =
                    self.grid.memory.allocation(address, bytes).map_err(|found| outside(address, bytes, found))?;
                let same = data.raw(at, from.len()) == from;
                let noted = self.grid.races.access(kind, address, bytes, &by, same, &self.clocks);
                noted.map_err(|conflict| Trouble::conflict("global", conflict))?;
                data.write(at, from);
                Ok(())
            }
            Space::Param if address < OWN_PARAMS => {
                Err(outside(address, bytes, "parameters of the kernel, which are not written"))
            }
            Space::Const => Err(outside(address, bytes, "constant memory, which is not written")),
            Space::Local | Space::Param => {
                let own = own_address(space, address);
                let at = self.local_at(by, own, bytes)?;
                self.local.write(at, from);
                Ok(())
            }
        }
    }

    /// Where an access to shared memory is.
    pub(super) fn shared_at(&self, address: u64, bytes: u32) -> Result<usize, Trouble> {
        let len = self.shared.len();
        let found = || format!("the shared memory of the block, which has {len} bytes");
        inside(address, bytes, len).ok_or_else(|| outside(address, bytes, found()))
    }

    fn local_at(&self, by: By, address: u64, bytes: u32) -> Result<usize, Trouble> {
        let len = self.grid.program.local_bytes as usize;
        let found = || format!("the local memory of the thread, which has {len} bytes");
        let at = inside(address, bytes, len).ok_or_else(|| outside(address, bytes, found()))?;
        let thread = usize::from(by.warp) * LANES + usize::from(by.lane);
        Ok(thread * len + at)
    }
}

impl Trouble {
    /// A conflict in shared or global memory.
    pub(super) fn conflict(memory: &str, conflict: Conflict) -> Self {
        let (kind, what) = match conflict.kind {
            _ if conflict.unfenced => (
                FaultKind::ProxyFence,
                "is accessed by the generic and then by the async proxy, with no fence.proxy.async between the two",
            ),
            Kind::CopyTo | Kind::CopyFrom | Kind::AsyncTo | Kind::AsyncFrom | Kind::PhaseRead | Kind::PhaseWrite => {
                (FaultKind::InFlight, "is in use by a copy that was not waited for")
            }
            Kind::Operand => (FaultKind::Operand, "is read by a wgmma, and nothing orders the end of that before this"),
            Kind::Object => (FaultKind::Mbarrier, "is of an mbarrier object"),
            _ => (FaultKind::Race, "is accessed twice, and nothing orders the two"),
        };
        let what = format!("the byte of {memory} memory at {:#x} {what}", conflict.address);
        Trouble { earlier: Some(conflict), ..Trouble::new(kind, what) }
    }
}

/// The bits of an element of memory, in a register.
fn number(element: &[u8], extend: Extend) -> u64 {
    let mut bits = [0; 8];
    bits[..element.len()].copy_from_slice(element);
    let bits = u64::from_le_bytes(bits);
    let unused = 64 - 8 * element.len() as u32;
    match extend {
        Extend::Zero => bits,
        Extend::Sign => ((bits << unused) as i64 >> unused) as u64,
    }
}

/// The place in a thread's own memory: parameters of functions have addresses of their own.
fn own_address(space: Space, address: u64) -> u64 {
    if space == Space::Param { address - OWN_PARAMS } else { address }
}

pub(super) fn aligned(address: u64, bytes: usize) -> Result<(), Trouble> {
    if address.is_multiple_of(bytes as u64) {
        return Ok(());
    }
    let what = format!("found address {address:#x}, wanted a multiple of {bytes}");
    Err(Trouble::new(FaultKind::Misaligned, what))
}

fn inside(address: u64, bytes: u32, len: usize) -> Option<usize> {
    let at = usize::try_from(address).ok()?;
    (at.checked_add(bytes as usize)? <= len).then_some(at)
}

pub(super) fn outside(address: u64, bytes: u32, found: impl std::fmt::Display) -> Trouble {
    Trouble::new(FaultKind::OutOfBounds, format!("{bytes} bytes at {address:#x}: found {found}"))
}

pub(super) fn uninitialised(memory: &str, address: u64) -> Trouble {
    Trouble::new(
        FaultKind::Uninitialised,
        format!("the byte of {memory} memory at {address:#x} is not written, or not yet"),
    )
}
