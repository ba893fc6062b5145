// FlashAttention-1: Algorithm 1 of Dao et al. (arXiv 2205.14135), line by line.
//
// K and V stay in shared memory while all rows of Q stream past, so O, l and m of every row go to device memory and come
// back once for each tile of keys. A tile of keys needs the O that the one before it left: the outer loop cannot be split,
// and blocks of threads are independent over batch and heads only.
//
// Compile-time choice, set by the host: ELEMENT, float or f16.
#include "tile/softmax.cuh"

constexpr int WARPS = 16, THREADS = LANES * WARPS;

/// Line 1: sizes of the tiles, chosen by the host so that all of them fit in shared memory.
struct Blocks {
    int rows, keys;  // B_r and B_c
};

/// O, l and m of all rows between the steps: f32 [batch, heads, q_len (, d_v)] of the longest q_len.
struct Running {
    float *o, *l, *m;
    int q_len;
};

// ANCHOR: tile
/// A tile in shared memory. Its stride is odd: a column lies in as many banks as a row, so that lanes may read either.
struct Tile {
    float* data;
    int stride;

    __device__ float& operator()(int r, int c) const { return data[r * stride + c]; }
    /// Takes its place from what is left of shared memory.
    __device__ static Tile take(float*& left, int rows, int columns) {
        const Tile tile = {left, columns | 1};
        left += rows * tile.stride;
        return tile;
    }
};
// ANCHOR_END: tile

template <class T> __device__ void load(Tile tile, const Rows<T>& from, int first, int rows) {
    for (int x = threadIdx.x; x < rows * from.channels; x += THREADS) {
        const int r = x / from.channels, c = x % from.channels;
        tile(r, c) = to_f32(from(first + r, c));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fa1(const __grid_constant__ Problem problem, Blocks blocks, Running running) {
    extern __shared__ float memory[];
    float* left = memory;
    const Tile k_j = Tile::take(left, blocks.keys, problem.d), v_j = Tile::take(left, blocks.keys, problem.d_v);
    const Tile q_i = Tile::take(left, blocks.rows, problem.d), o_i = Tile::take(left, blocks.rows, problem.d_v);
    const Tile s_ij = Tile::take(left, blocks.rows, blocks.keys);
    float *l_i = left, *m_i = l_i + blocks.rows;

    const int sequence = blockIdx.x / problem.heads, h = blockIdx.x % problem.heads;
    const Head<ELEMENT> head(problem, sequence, h);
    const long long row0 = (long long)blockIdx.x * running.q_len;
    const Rows<float> O = {running.o + row0 * problem.d_v, problem.d_v, 1, head.q.len, problem.d_v};
    float *l = running.l + row0, *m = running.m + row0;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;

    // ANCHOR: loops
    // Line 2: O = 0, l = 0, m = -inf in device memory.
    for (long long x = threadIdx.x; x < (long long)head.q.len * problem.d_v; x += THREADS) O.data[x] = 0.0f;
    for (int i = threadIdx.x; i < head.q.len; i += THREADS) l[i] = 0.0f, m[i] = NEG_INFINITY;

    // Lines 3 and 4, dividing into tiles, are the steps of the two loops.
    for (int j0 = 0; j0 < head.k.len; j0 += blocks.keys) {  // line 5
        const int keys = min(blocks.keys, head.k.len - j0);
        // Line 6. Nobody reads the tiles before: the last barrier came after the last row that did.
        load(k_j, head.k, j0, keys), load(v_j, head.v, j0, keys);
        for (int i0 = 0; i0 < head.q.len; i0 += blocks.rows) {  // line 7
            const int rows = min(blocks.rows, head.q.len - i0);
            __syncthreads();  // q_i, o_i, l_i, m_i have been read or stored, and O is written
            // Line 8: load Q_i, O_i, l_i, m_i.
            load(q_i, head.q, i0, rows), load(o_i, O, i0, rows);
            for (int r = threadIdx.x; r < rows; r += THREADS) l_i[r] = l[i0 + r], m_i[r] = m[i0 + r];
            __syncthreads();  // the tiles are whole

            for (int r = warp; r < rows; r += WARPS) {  // a warp a row, from here to the end
                float m_tile = NEG_INFINITY, l_tile = 0.0f;
                // Line 9: S_ij = Q_i K_j^T; line 10, its row maximum.
                for (int c = lane; c < keys; c += LANES) {
                    float dot = 0.0f;
                    for (int x = 0; x < problem.d; ++x) dot += q_i(r, x) * k_j(c, x);
                    const float s = head.score(dot, i0 + r, j0 + c);
                    s_ij(r, c) = s, m_tile = fmaxf(m_tile, s);
                }
                m_tile = max_over<LANES>(m_tile);
                // Line 10: P~ = exp(S - m~), l~ = rowsum(P~).
                for (int c = lane; c < keys; c += LANES) {
                    const float p_rc = weight(s_ij(r, c), m_tile);
                    s_ij(r, c) = p_rc, l_tile += p_rc;
                }
                l_tile = sum_over<LANES>(l_tile);
                if (l_tile == 0.0f) continue;  // the row sees no key of this tile
                // Line 11: m_new = max(m, m~), l_new = e^(m - m_new) l + e^(m~ - m_new) l~.
                const float m_new = fmaxf(m_i[r], m_tile);
                const float l_old = weight(m_i[r], m_new) * l_i[r], share = weight(m_tile, m_new);
                const float l_new = l_old + share * l_tile;
                __syncwarp();  // the row of P~ is whole; l_i and m_i have been read
                // Line 12: O = diag(l_new)^-1 (diag(l) e^(m - m_new) O + e^(m~ - m_new) P~ V).
                for (int c = lane; c < problem.d_v; c += LANES) {
                    float product = 0.0f;
                    for (int x = 0; x < keys; ++x) product = add_weighted(product, s_ij(r, x), v_j(x, c));
                    o_i(r, c) = (l_old * o_i(r, c) + share * product) / l_new;
                }
                // Line 13: l = l_new, m = m_new.
                if (lane == 0) l_i[r] = l_new, m_i[r] = m_new;
            }

            __syncthreads();  // every row is done
            // Lines 12 and 13: write O_i, l_i, m_i to device memory.
            for (int x = threadIdx.x; x < rows * problem.d_v; x += THREADS) {
                O(i0 + x / problem.d_v, x % problem.d_v) = o_i(x / problem.d_v, x % problem.d_v);
            }
            for (int r = threadIdx.x; r < rows; r += THREADS) l[i0 + r] = l_i[r], m[i0 + r] = m_i[r];
        }
    }
    // ANCHOR_END: loops

    // Line 16, return O, and what the listing leaves out: the sink, lse, and the rounding of o.
    __syncthreads();  // O, l and m are whole
    for (long long x = threadIdx.x; x < (long long)head.q.len * problem.d_v; x += THREADS) {
        const int i = x / problem.d_v, c = x % problem.d_v;
        head.o(i, c) = from_f32<ELEMENT>(O(i, c) * (final_factor(m[i], l[i], head.sink) * l[i]));
    }
    for (int i = threadIdx.x; i < head.q.len; i += THREADS) head.store_lse(i, log_sum_exp(m[i], l[i]));
}
