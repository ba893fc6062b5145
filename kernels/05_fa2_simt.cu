// FlashAttention-2 on CUDA cores: Algorithm 1 of Dao (arXiv 2307.08691), a block of threads for each tile of rows.
//
// Q, O, l and m of the tile stay on chip, Q in shared memory and the rest in registers, while the keys stream past. Both
// products are sums of outer products in registers (tile/outer_product.cuh): S from the columns of Q and K, O from the
// columns of P and the rows of V. TX neighbouring lanes share 8 rows: they find a row's maximum with shuffles, and hand P on
// through shared memory without waiting for other warps.
//
// Compile-time choices, set by the host: ELEMENT, float or f16; HEAD_DIM, 64, 128 or 256: the channels of q, k and v, padded
// with zeros.
#include "tile/outer_product.cuh"
#include "tile/softmax.cuh"

constexpr int D = HEAD_DIM;
constexpr int TX = D / 8;                 // lanes that share rows: each has 8 rows by 8 channels of O
constexpr int ROWS = 128 * 8 / TX;        // B_r
constexpr int KEYS = D == 256 ? 32 : 64;  // B_c
constexpr int TY = ROWS / 8;
constexpr int THREADS = TX * TY;
constexpr int N = KEYS / TX;              // keys of a thread
constexpr int RUN = N < 4 ? N : 4;        // of them side by side
constexpr int C = 8;                      // channels of a thread, four side by side
static_assert(THREADS == 128);            // what the host launches

/// What lies in shared memory: q and k by channels, p by keys, so that the products read one channel or key at a time.
struct Shared {
    float q[D * ROWS], k[D * KEYS], v[KEYS * D], p[KEYS * ROWS];
};

using QTile = Swizzled<ROWS>;
using KTile = Swizzled<KEYS>;
using VTile = Plain<D>;
using PTile = Swizzled<ROWS>;

/// Numbers below it are tame: neither they nor a sum of their products overflows.
constexpr float TAME = 0x1p58f;

/// Calls `store(r, c, x)` for rows r from 0 to before `COUNT` and every fourth channel c, x being the four numbers from
/// there of row first + r. A warp takes 4 rows by 32 channels at once: whole sectors of device memory, and few banks twice
/// where `store` transposes. Returns whether all numbers are tame.
template <int COUNT, bool IN_FOURS, class T, class Store>
__device__ bool copy(const Rows<T>& from, int first, Store store) {
    constexpr int SPAN = D < 128 ? D : 128;     // channels that the block takes at once
    constexpr int STEP = THREADS / (SPAN / 4);  // and rows
    constexpr int FLIGHT = 8;                   // loads of a thread under way
    static_assert(COUNT % (STEP * FLIGHT) == 0 && D % SPAN == 0);
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int r0 = warp / (SPAN / 32) * 4 + lane / 8, c0 = warp % (SPAN / 32) * 32 + lane % 8 * 4;
    bool tame = true;
#pragma unroll 1
    for (int c = c0; c < D; c += SPAN) {
        const int rows = c < from.channels ? from.len - first : 0;
        const T* at = &from(first + r0, c);
#pragma unroll 1
        for (int r = r0; r < COUNT; r += STEP * FLIGHT) {
            Four<T> four[FLIGHT];
            for (int u = 0; u < FLIGHT; ++u, at += STEP * from.row) {
                four[u] = {};
                if (r + u * STEP < rows) four[u] = from.template four<IN_FOURS>(at, c);
            }
            for (int u = 0; u < FLIGHT; ++u) {
                float x[4];
                for (int e = 0; e < 4; ++e) x[e] = to_f32(four[u].x[e]), tame &= fabsf(x[e]) < TAME;
                store(r + u * STEP, c, x);
            }
        }
    }
    return tame;
}

/// [`copy`], by 16 or 8 bytes where the layout allows it.
template <int COUNT, class T, class Store> __device__ bool load(const Rows<T>& from, int first, Store store) {
    return from.in_fours() ? copy<COUNT, true>(from, first, store) : copy<COUNT, false>(from, first, store);
}

/// The scores of a thread's keys where more than scale and mask makes them. They go through shared memory, for a loop that
/// is not unrolled: this is the rare case, and its code is long.
template <class T>
__device__ void general_scores(const Head<T>& head, PTile p, int ty, int tx, int i0, int j0) {
#pragma unroll 1
    for (int n = 0; n < N; ++n) {
        const int j = first_column<TX, RUN>(tx, n / RUN) + n % RUN;
#pragma unroll 1
        for (int r = ty * 8; r < ty * 8 + 8; ++r) {
            const bool inside = i0 + r < head.q.len && j0 + j < head.k.len;
            p(j, r) = inside ? head.score(p(j, r), i0 + r, j0 + j) : NEG_INFINITY;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, D == 256 ? 1 : 2) fa2_simt(const __grid_constant__ Problem problem) {
    extern __shared__ float4 memory[];
    Shared& shared = *(Shared*)memory;
    const QTile q = {shared.q};
    const KTile k = {shared.k};
    const VTile v = {shared.v};
    const PTile p = {shared.p};
    const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;

    // Lines 1 to 3: one block a tile of rows. The last come first: under a causal mask they have the most keys.
    const int tile = problem.row_tiles - 1 - blockIdx.x % problem.row_tiles;
    const unsigned heads = blockIdx.x / problem.row_tiles;
    const Head<ELEMENT> head(problem, heads / problem.heads, heads % problem.heads);
    const int i0 = tile * ROWS, i_end = min(i0 + ROWS, head.q.len);
    if (i0 >= head.q.len) return;

    // ANCHOR: stream
    // Line 4: load Q_i.
    const bool tame_q = load<ROWS>(head.q, i0, [&](int r, int c, const float* x) {
        for (int e = 0; e < 4; ++e) q(c + e, r) = x[e];
    });
    // Line 5: O = 0, l = 0, m = -inf. l is summed over a thread's own keys until the end.
    float o[8][C] = {}, l[8] = {}, m[8];
    for (float& m_r : m) m_r = NEG_INFINITY;

    const Range any = head.visible_to_any(i0, i_end);
    const Range all = {head.visible(i_end - 1).start, head.visible(i0).end};  // what every row sees
    for (int j0 = any.start / KEYS * KEYS; j0 < any.end; j0 += KEYS) {  // line 6
        __syncthreads();  // the tiles before have been read, and may be overwritten
        // Line 7: load K_j, V_j.
        const bool tame_k = load<KEYS>(head.k, j0, [&](int r, int c, const float* x) {
            for (int e = 0; e < 4; ++e) k(c + e, r) = x[e];
        });
        const bool tame_v = load<KEYS>(head.v, j0, [&](int r, int c, const float* x) {
            *(float4*)v.group(r, c / 4) = make_float4(x[0], x[1], x[2], x[3]);
        });
        const bool tame = __syncthreads_and(tame_q && tame_k && tame_v);  // and the tiles are whole

        // Line 8: S = Q_i K_j^T.
        float s[8][N] = {};
        add_product<TX, RUN, D>(s, q, k, ty, tx, [](float s, float q, float k) { return fmaf(q, k, s); });
        if (head.only_scales() && tame) {
            for (auto& row : s) {
                for (float& score : row) score *= head.scale;
            }
            if (j0 < all.start || j0 + KEYS > all.end) {  // a row or more does not see the whole tile
                for (int r = 0; r < 8; ++r) {
                    const Range keys = head.visible(i0 + ty * 8 + r);
                    for (int n = 0; n < N; ++n) {
                        const int j = j0 + first_column<TX, RUN>(tx, n / RUN) + n % RUN;
                        if (j < keys.start || j >= keys.end) s[r][n] = NEG_INFINITY;
                    }
                }
            }
        } else {
            write_columns<TX, RUN>(p, s, ty, tx);
            general_scores(head, p, ty, tx, i0, j0);
            read_columns<TX, RUN>(s, p, ty, tx);
        }

        // Line 9: m_new = max(m, rowmax(S)), P~ = exp(S - m_new), l = e^(m - m_new) l + rowsum(P~).
        for (int r = 0; r < 8; ++r) {
            float m_new = m[r];
            for (int n = 0; n < N; ++n) m_new = fmaxf(m_new, s[r][n]);
            m_new = max_over<TX>(m_new);
            const float rescale = weight(m[r], m_new);
            m[r] = m_new, l[r] *= rescale;
            for (int n = 0; n < N; ++n) s[r][n] = weight(s[r][n], m_new), l[r] += s[r][n];
            // Line 10: O = diag(e^(m - m_new)) O ...
            for (int c = 0; c < C; ++c) o[r][c] *= rescale;
        }
        write_columns<TX, RUN>(p, s, ty, tx);
        __syncwarp();  // P is whole for these rows, which no other warp reads
        // ... + P~ V_j.
        if (!tame) {
            add_product<TX, 4, KEYS>(o, p, v, ty, tx, add_weighted);
        } else {
            add_product<TX, 4, KEYS>(o, p, v, ty, tx, [](float o, float p, float v) { return fmaf(p, v, o); });
        }
    }
    // ANCHOR_END: stream

    for (int r = 0; r < 8; ++r) {
        const int i = i0 + ty * 8 + r;
        const float sum = sum_over<TX>(l[r]);
        if (i >= head.q.len) continue;
        // Lines 12 to 15: O = diag(l)^-1 O and L = m + ln l go to device memory.
        const float factor = final_factor(m[r], sum, head.sink);
        for (int c = 0; c < C; ++c) {
            const int channel = first_column<TX, 4>(tx, c / 4) + c % 4;
            if (channel < problem.d_v) head.o(i, channel) = from_f32<ELEMENT>(o[r][c] * factor);
        }
        if (tx == 0) head.store_lse(i, log_sum_exp(m[r], sum));
    }
}
