//! Wrong variants of chapter 7: slips that are easy to make. The checks must reject each of them.

use paged as subject;

mod laws;

use laws::*;
use paged::{Append, BlockCopy, BlockId, BlockManager, Blocks, Config, ExtraKey, SequenceId, Slot, Table};
use proptest::prelude::*;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher};
use testkit::assert_caught;

#[test]
fn wrong_slots() {
    type At = fn(&Table, usize) -> Option<Slot>;
    let beyond_the_end: At = |table, t| {
        let block = *table.blocks.get(t / table.page())?;
        Some(Slot { block, offset: t % table.page() })
    };
    let last_token_missing: At = |table, t| table.slot(t).filter(|_| t + 1 < table.len);
    let counted_from_one: At = |table, t| {
        let block = *table.blocks.get((t + 1) / table.page())?;
        (t < table.len).then_some(Slot { block, offset: (t + 1) % table.page() })
    };
    let turned: At = |table, t| {
        let (block, offset) = (*table.blocks.get(t % table.blocks.len().max(1))?, t / table.blocks.len().max(1));
        (t < table.len).then_some(Slot { block, offset })
    };
    let index_for_block: At = |table, t| {
        let slot = table.slot(t)?;
        Some(Slot { block: (t / table.page()) as BlockId, ..slot })
    };
    for (name, slot) in [
        ("tokens that are not there", beyond_the_end),
        ("the last token missing", last_token_missing),
        ("counted from one", counted_from_one),
        ("block and slot exchanged", turned),
        ("the table's entry for the block", index_for_block),
    ] {
        let cases = (1usize..6, prop::collection::vec(1i32..9, 0..5), 0usize..5);
        assert_caught(name, 200, cases, |(page, blocks, free)| {
            let len = (blocks.len() * page).saturating_sub(free.min(page - 1));
            slots_are_in_the_tables_order(slot, page, &blocks, len)
        });
    }
}

#[test]
fn wrong_growths() {
    type Grow = fn(&mut Table, &mut Blocks) -> Had<Slot>;
    let one_page_too_many: Grow = |table, blocks| {
        let slot = table.grow(blocks)?;
        if table.len % table.page() == 0 {
            table.blocks.push(blocks.allocate()?);
        }
        Ok(slot)
    };
    let one_early: Grow = |table, blocks| {
        if table.len % table.page() + 1 == table.page() && table.len > 0 {
            table.blocks.push(blocks.allocate()?);
        }
        table.grow(blocks)
    };
    let one_a_token: Grow = |table, blocks| {
        table.blocks.push(blocks.allocate()?);
        table.len += 1;
        Ok(Slot { block: *table.blocks.last().expect("just pushed"), offset: (table.len - 1) % table.page() })
    };
    let counted_without_a_block: Grow = |table, blocks| {
        let slot = table.grow(blocks);
        table.len += usize::from(slot.is_err());
        slot
    };
    let place_of_the_next: Grow = |table, blocks| {
        let slot = table.grow(blocks)?;
        Ok(Slot { offset: table.len % table.page(), ..slot })
    };
    for (name, grow) in [
        ("one page too many", one_page_too_many),
        ("a block one token early", one_early),
        ("a block for each token", one_a_token),
        ("a token counted without a block", counted_without_a_block),
        ("the place of the next token", place_of_the_next),
    ] {
        assert_caught(name, 200, (1usize..8, 1usize..6), |(page, blocks)| {
            blocks_come_with_their_first_token(grow, page, blocks)
        });
    }
}

#[test]
fn wrong_forks() {
    type Share = fn(&Table, &mut Blocks) -> Had<Table>;
    let counted_twice: Share = |table, blocks| {
        table.blocks.iter().try_for_each(|&block| blocks.retain(block))?;
        Ok(table.clone())
    };
    let not_counted: Share = |table, _| Ok(table.clone());
    let copied: Share = |table, blocks| {
        let fresh = table.blocks.iter().map(|_| blocks.allocate()).collect::<Had<Vec<BlockId>>>()?;
        Ok(Table::listing(table.page(), fresh, table.len))
    };
    let without_the_last: Share = |table, blocks| {
        let mut shorter = table.clone();
        shorter.blocks.pop();
        shorter.share(blocks)?;
        Ok(table.clone())
    };
    let full_blocks_alone: Share = |table, blocks| {
        let fork = table.share(blocks)?;
        Ok(Table::listing(table.page(), fork.blocks, table.len.saturating_sub(1)))
    };
    for (name, share) in [
        ("a repeated block counted twice", counted_twice),
        ("nothing counted", not_counted),
        ("all blocks copied", copied),
        ("the last block not counted", without_the_last),
        ("a token less", full_blocks_alone),
    ] {
        let cases = prop::collection::vec(0usize..4, 0..8);
        assert_caught(name, 200, cases, |listed| a_fork_holds_each_block_once_more(share, &listed));
    }
}

#[test]
fn wrong_copies() {
    type Own = fn(&mut Table, &mut Blocks) -> Had<Option<BlockCopy>>;
    let never: Own = |_, _| Ok(None);
    let nothing_copied: Own = |table, blocks| Ok(table.own(blocks)?.map(|copy| BlockCopy { slots: 0, ..copy }));
    let whole_block: Own = |table, blocks| {
        let page = table.page();
        Ok(table.own(blocks)?.map(|copy| BlockCopy { slots: page, ..copy }))
    };
    let fill_alone: Own = |table, blocks| {
        let fill = table.len % table.page();
        Ok(table.own(blocks)?.map(|copy| BlockCopy { slots: fill, ..copy }))
    };
    let turned: Own = |table, blocks| {
        Ok(table.own(blocks)?.map(|BlockCopy { from, to, slots }| BlockCopy { from: to, to: from, slots }))
    };
    let old_one_kept: Own = |table, blocks| {
        let copy = table.own(blocks)?;
        copy.map_or(Ok(()), |copy| blocks.retain(copy.from))?;
        Ok(copy)
    };
    let table_not_changed: Own = |table, blocks| {
        let before = table.clone();
        let copy = table.own(blocks)?;
        *table = before;
        Ok(copy)
    };
    let released_before_it_is_had: Own = |table, blocks| {
        let last = table.blocks.last().copied();
        let copy = table.own(blocks);
        if let (Err(_), Some(last)) = (&copy, last) {
            blocks.release(last)?;
        }
        copy
    };
    let of_one_holder_too: Own = |table, blocks| {
        let last = table.blocks.last().copied().filter(|_| table.len % table.page() > 0);
        last.map_or(Ok(()), |last| blocks.retain(last))?;
        let copy = table.own(blocks);
        if let (Err(_), Some(last)) = (&copy, last) {
            blocks.release(last)?;
        }
        copy
    };
    for (name, own) in [
        ("never", never),
        ("the content not copied", nothing_copied),
        ("always the whole block", whole_block),
        ("the fill alone of a block listed twice", fill_alone),
        ("from the fresh to the old", turned),
        ("the old one not given back", old_one_kept),
        ("the table not changed", table_not_changed),
        ("given back before a block is had", released_before_it_is_had),
        ("a block of one holder too", of_one_holder_too),
    ] {
        assert_caught(name, 200, before(), |case| a_written_block_has_one_holder(own, &case));
    }
}

#[test]
fn wrong_hashes() {
    type Chain = fn(u64, &[u32], &[ExtraKey]) -> u64;
    fn one(value: impl Hash) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
    }
    let not_chained: Chain = |_, tokens, keys| one((tokens, keys));
    let keys_forgotten: Chain = |parent, tokens, _| one((parent, tokens));
    let kinds_forgotten: Chain = |parent, tokens, keys| {
        let names = keys.iter().map(|key| match key {
            ExtraKey::Adapter(name) | ExtraKey::Salt(name) => name.as_str(),
            ExtraKey::Image { .. } => "image",
        });
        one((parent, tokens, names.collect::<Vec<_>>()))
    };
    let exclusive_or: Chain = |parent, tokens, keys| parent ^ one((tokens, keys));
    let order_forgotten: Chain = |parent, tokens, keys| {
        let mut sorted = tokens.to_vec();
        sorted.sort_unstable();
        one((parent, sorted, keys))
    };
    let first_token: Chain = |parent, tokens, keys| one((parent, tokens.first(), keys));
    let without_end: Chain = |parent, tokens, keys| {
        let mut state = DefaultHasher::new();
        state.write_u64(parent);
        tokens.iter().for_each(|token| state.write_u32(token / 2));
        keys.hash(&mut state);
        state.finish()
    };
    for (name, hash) in [
        ("not chained", not_chained),
        ("keys forgotten", keys_forgotten),
        ("kinds of keys forgotten", kinds_forgotten),
        ("chained by exclusive or", exclusive_or),
        ("the order of tokens forgotten", order_forgotten),
        ("the first token alone", first_token),
        ("a bit of each token forgotten", without_end),
    ] {
        let prompt = || prop::collection::vec(0u32..3, 0..9);
        let keys = || {
            let names: [fn(String) -> ExtraKey; 2] = [ExtraKey::Adapter, ExtraKey::Salt];
            let key = (prop::sample::select(names.to_vec()), "[ab]").prop_map(|(kind, name)| kind(name));
            prop::collection::vec(key, 0..2)
        };
        let cases = (1usize..4, prompt(), prompt(), keys(), keys());
        assert_caught(name, 200, cases, |(page, one, other, one_keys, other_keys)| {
            a_hash_is_of_all_that_stands_before(hash, page, (&one, &one_keys), (&other, &other_keys))
        });
    }
}

#[test]
fn wrong_hits() {
    type Cached<'a> = &'a mut dyn FnMut(usize, &[u32]) -> Option<BlockId>;
    type Hit = fn(&[u32], usize, Cached) -> Vec<BlockId>;
    let partial_pages: Hit =
        |prompt, page, cached| prompt.chunks(page).enumerate().map_while(|(i, tokens)| cached(i, tokens)).collect();
    let nothing_recomputed: Hit = |prompt, page, cached| {
        prompt.chunks_exact(page).enumerate().map_while(|(i, tokens)| cached(i, tokens)).collect()
    };
    let gaps_skipped: Hit = |prompt, page, cached| {
        let most = prompt.len().saturating_sub(1) / page;
        prompt.chunks_exact(page).take(most).enumerate().filter_map(|(i, tokens)| cached(i, tokens)).collect()
    };
    let one_page_less: Hit = |prompt, page, cached| {
        let most = (prompt.len() / page).saturating_sub(1);
        prompt.chunks_exact(page).take(most).enumerate().map_while(|(i, tokens)| cached(i, tokens)).collect()
    };
    let first_page_alone: Hit =
        |prompt, page, cached| paged::longest_hit(&prompt[..prompt.len().min(page + 1)], page, cached);
    for (name, hit) in [
        ("partial pages", partial_pages),
        ("nothing left to compute", nothing_recomputed),
        ("gaps skipped", gaps_skipped),
        ("one page less", one_page_less),
        ("the first page alone", first_page_alone),
    ] {
        let cases = (1usize..6, 0u32..30, prop::collection::vec(any::<bool>(), 0..9));
        assert_caught(name, 200, cases, |(page, len, there)| a_hit_is_the_longest_beginning(hit, page, len, &there));
    }
}

/// What a wrong manager does otherwise than the reference, which it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The control: it must pass.
    None,
    /// The new token is written where it would have been without the copy, and the copy made then.
    CopyAfterTheWrite,
    /// The copy is not told.
    CopyForgotten,
    /// A fork is the parent itself.
    ForkIsTheParent,
    /// One token more is said to be found than is.
    OneTokenTooMany,
    /// Tenants share what they must not.
    KeysForgotten,
    /// Freeing is left to others.
    NeverFreed,
}

struct Faulty {
    manager: BlockManager,
    fault: Fault,
}

impl Manager for Faulty {
    type Id = SequenceId;

    fn admit(&mut self, prompt: &[u32], keys: &[ExtraKey]) -> Had<(SequenceId, usize)> {
        let keys = if self.fault == Fault::KeysForgotten { &[] } else { keys };
        let admission = self.manager.admit(prompt, keys)?;
        let more = usize::from(self.fault == Fault::OneTokenTooMany && admission.cached > 0);
        Ok((admission.sequence, admission.cached + more))
    }

    fn append(&mut self, sequence: SequenceId, token: u32) -> Had<Append> {
        let Append { slot, copy } = self.manager.append(sequence, token)?;
        Ok(match (self.fault, copy) {
            (Fault::CopyAfterTheWrite, Some(copy)) => {
                Append { slot: Slot { block: copy.from, ..slot }, copy: Some(copy) }
            }
            (Fault::CopyForgotten, _) => Append { slot, copy: None },
            _ => Append { slot, copy },
        })
    }

    fn fork(&mut self, sequence: SequenceId) -> Had<SequenceId> {
        if self.fault == Fault::ForkIsTheParent { Ok(sequence) } else { self.manager.fork(sequence) }
    }

    fn free(&mut self, sequence: SequenceId) -> Had<()> {
        if self.fault == Fault::NeverFreed { Ok(()) } else { self.manager.free(sequence) }
    }

    fn table(&self, sequence: SequenceId) -> Had<Table> {
        self.manager.table(sequence).cloned()
    }

    fn blocks(&self) -> &Blocks {
        self.manager.blocks()
    }
}

fn keeps_its_tokens(fault: Fault, (blocks, page, calls): (usize, usize, Vec<Call>)) -> Result<(), TestCaseError> {
    let manager = BlockManager::new(Config::new(blocks, page)).expect("a small pool");
    sequences_keep_their_tokens(Faulty { manager, fault }, (blocks, page), &calls)
}

#[test]
fn wrong_managers() {
    for fault in [
        Fault::CopyAfterTheWrite,
        Fault::CopyForgotten,
        Fault::ForkIsTheParent,
        Fault::OneTokenTooMany,
        Fault::KeysForgotten,
        Fault::NeverFreed,
    ] {
        assert_caught(&format!("{fault:?}"), 200, (2usize..12, 1usize..5, calls()), |case| {
            keeps_its_tokens(fault, case)
        });
    }
}

proptest! {
    #![proptest_config(testkit::config())]

    #[test]
    fn the_control_passes(blocks in 2usize..12, page in 1usize..5, calls in calls()) {
        keeps_its_tokens(Fault::None, (blocks, page, calls))?;
    }
}
