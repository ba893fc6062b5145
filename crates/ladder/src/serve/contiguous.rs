//! Contiguous reservation: a request's keys and values lie one behind the other, in a region as long as it may ever become.
//!
//! That is how servers did it before PagedAttention (arXiv 2309.06180, section 3). A region cannot grow, for another may
//! begin behind it; so it is reserved at its longest, and what the answer does not fill is held for nothing.

use super::cache::{Cache, Usage, fa2, lengths};
use super::model::{D, KV_HEADS, Rows};
use anyhow::{Context, Result};
use attention::{Attention, Batch, Kv, Options, Output, Problem};
use ndarray::{Array3, s};
use std::ops::Range;

/// Keys and values `[slots, KV_HEADS, D]`, and the regions of requests in them.
pub(crate) struct Contiguous {
    k: Array3<f32>,
    v: Array3<f32>,
    /// In the order in which they lie.
    regions: Vec<Region>,
}

struct Region {
    request: usize,
    slots: Range<usize>,
    filled: usize,
}

impl Contiguous {
    /// Nothing but free slots. What none has written is NaN, so that whoever reads it shows.
    pub(crate) fn new(slots: usize) -> Self {
        let nothing = || Array3::from_elem((slots, KV_HEADS, D), f32::NAN);
        Contiguous { k: nothing(), v: nothing(), regions: Vec::new() }
    }

    fn region(&self, request: usize) -> Result<&Region> {
        self.regions.iter().find(|region| region.request == request).context("a request without a region")
    }

    /// The first free place for so many slots: among the regions, and among the slots.
    fn first_fit(&self, slots: usize) -> Option<(usize, usize)> {
        let begins = self.regions.iter().map(|region| region.slots.start).chain([self.most()]);
        let ends = [0].into_iter().chain(self.regions.iter().map(|region| region.slots.end));
        begins.zip(ends).enumerate().find(|(_, (begin, end))| begin - end >= slots).map(|(i, (_, end))| (i, end))
    }
}

impl Cache for Contiguous {
    fn most(&self) -> usize {
        self.k.dim().0
    }

    fn admit(&mut self, request: usize, _: &[u32], _: usize, longest: usize) -> Result<Option<usize>> {
        let Some((place, start)) = self.first_fit(longest) else { return Ok(None) };
        self.regions.insert(place, Region { request, slots: start..start + longest, filled: 0 });
        Ok(Some(0))
    }

    fn extend(&mut self, _: usize, _: &[u32]) -> Result<bool> {
        Ok(true)
    }

    fn write(&mut self, request: usize, start: usize, rows: &Rows) -> Result<()> {
        let tokens = rows.k.dim().0;
        let region = self.regions.iter_mut().find(|region| region.request == request);
        let region = region.context("a request without a region")?;
        region.filled = start + tokens;
        let first = region.slots.start + start;
        self.k.slice_mut(s![first..first + tokens, .., ..]).assign(&rows.k);
        self.v.slice_mut(s![first..first + tokens, .., ..]).assign(&rows.v);
        Ok(())
    }

    fn attend(&self, request: usize, start: usize, rows: &Rows) -> Result<Output> {
        let (tokens, first) = (rows.q.dim().0, self.region(request)?.slots.start);
        let end = start + tokens;
        // The region as [KV_HEADS, slots, D], and the same for each token.
        let [k, v] = [&self.k, &self.v].map(|all| all.slice(s![first..first + end, .., ..]).permuted_axes([1, 0, 2]));
        let every = (tokens, KV_HEADS, end, D);
        let k = k.broadcast(every).context("keys for each token")?;
        let v = v.broadcast(every).context("values for each token")?;
        let kv = Kv::Contiguous { k: k.into(), v: v.into() };
        let problem = Problem::new(rows.q.view(), kv, Batch::KeyLens(&lengths(start, rows)), Options::default())?;
        Ok(fa2().forward(&problem)?)
    }

    fn release(&mut self, request: usize) -> Result<()> {
        self.regions.retain(|region| region.request != request);
        Ok(())
    }

    fn usage(&self) -> Usage {
        let held = self.regions.iter().map(|region| region.slots.len()).sum();
        Usage { held, filled: self.regions.iter().map(|region| region.filled).sum(), uses: held }
    }
}
