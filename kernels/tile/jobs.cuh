// Which tiles of rows a block takes that stays until all are done, and in which order.
#pragma once
#include "tile/ring.cuh"
#include "tile/rows.cuh"

// ANCHOR: schedule
/// The tiles of rows of all heads, shared out among blocks.
struct Schedule {
    int tiles;
    int section;     // heads whose keys and values the level-2 cache holds together: their tiles come before those of others
    unsigned* next;  // tiles that are taken but for the first of each block, 0 at launch; null where all are of the same work

    /// The tile that this block takes after that one. Where tiles differ in work, it is the next that nobody has.
    __device__ int after(int tile) const { return gridDim.x + (next ? atomicAdd(next, 1) : tile); }

    /// Where a tile is. Within a section, the last tiles of rows come first, of one head after the other: under a causal mask they
    /// have the most keys, and what is begun last is to be short.
    template <class B> __device__ void find(const Problem& problem, int tile, Place<B>& place) const {
        const int of_section = section * problem.row_tiles, first = tile / of_section * section, rest = tile % of_section;
        const int heads = min(section, problem.heads * problem.batch - first);
        place.init(problem, problem.row_tiles - 1 - rest / heads, first + rest % heads);
    }
};
// ANCHOR_END: schedule

/// A tile of rows, and where it is on the axes of the tensors' maps.
template <class B> struct Job {
    Place<B> at;  // its row is -1 behind the last
    int batch, kv_head, q_row, k_row;
};

/// Two jobs that all warps of a block know: the one that is done, and the next.
template <class B> struct Jobs {
    Job<B> job[2];
    Ring<2> ring;
    unsigned long long wanted_;  // a phase for each job: the next is to be found

    __device__ unsigned wanted() const { return shared_address(&wanted_); }
    /// For that many readers; one of them says when it wants the next.
    __device__ void init(int readers) {
        ring.init(readers);
        mbarrier_init(wanted(), 1);
    }
    __device__ const Job<B>& wait(Turn<2> turn) const {
        mbarrier_wait(ring.full(turn.stage()), turn.parity());
        return job[turn.stage()];
    }

    /// Finds jobs for this block until there are no more: one thread does.
    __device__ void find(const Problem& problem, const Schedule& schedule) {
        int tile = blockIdx.x;
        for (Turn<2> turn;; turn.next()) {
            mbarrier_wait(ring.empty(turn.stage()), turn.parity() ^ 1);
            Job<B>& found = job[turn.stage()];
            found.at.row = -1;
            for (; tile < schedule.tiles; tile = schedule.after(tile)) {
                schedule.find(problem, tile, found.at);
                if (found.at.row < found.at.end_row) break;  // else a sequence shorter than others
                found.at.row = -1;
            }
            const bool over = found.at.row < 0;
            if (!over) {
                const Sequence sequence = problem.sequence(found.at.sequence);
                found.batch = sequence.batch, found.kv_head = found.at.first_head / problem.group;
                found.q_row = sequence.q_start + found.at.row, found.k_row = sequence.k_start;
            }
            mbarrier_arrive(ring.full(turn.stage()));
            if (over) return;
            mbarrier_wait(wanted(), turn.number % 2);
            tile = schedule.after(tile);
        }
    }
};
