// Chapter 5, the exercise: FlashAttention-2, Algorithm 1 of Dao (arXiv 2307.08691), on CUDA cores in its plainest form.
//
// A block of threads takes a tile of ROWS rows of one head, and each thread one row of it: q, o, l and m of the row stay in
// registers, while the keys stream past through shared memory in tiles of KEYS. Tensors are f32 and lie row by row, D numbers
// each: number c of row i is at `i * D + c`.
//
// Six functions are yours, in this order: visible, load, scores, update, finish, fa2. Put your code where TODO stands.
// `cargo run --release -- check 5` says how far you are, and `--hint` helps. It runs the kernel on a simulated GPU.

constexpr int D = HEAD_DIM;  // channels of q, k and v; the host sets it
constexpr int ROWS = 64;     // B_r, and the threads of a block: two warps
constexpr int KEYS = 8;      // B_c
constexpr float NEG_INFINITY = __builtin_bit_cast(float, 0xff800000u);

/// Ends the kernel: here is something still to be written.
#define TODO(what) __trap()

/// The weight e^(s - m) of a score s against a reference m that is no smaller; 0 for a score of -inf, though m may be -inf.
__device__ float weight(float s, float m) { return expf(s - (m == NEG_INFINITY ? 0.0f : m)); }

/// Step 1. The end of the keys that row `i` sees, which are those from 0 to before it.
///
/// Without the causal mask a row sees all `k_len` keys. With it, the last of the `q_len` rows sees them all, and each row one
/// more than the row before it. A row far up may see none. The end is never below 0 or above k_len, whatever `i` is.
__device__ int visible(int i, int q_len, int k_len, bool causal) {
    TODO("step 1, visible");
}

/// Step 2, line 7 of the listing. Rows `first` to before `first + KEYS` of a matrix of `len` rows, loaded into a tile by all
/// threads of the block together.
///
/// The matrix ends behind row len - 1, and nothing there may be read: rows of the tile beyond it are 0. Neighbouring threads
/// take neighbouring numbers, so that a warp reads whole sectors. A tile has KEYS * D numbers, the block has ROWS threads.
__device__ void load(float (&tile)[KEYS][D], const float* matrix, int len, int first) {
    TODO("step 2, load");
}

/// Step 3, line 8. The scores of one row and the keys of a tile, whose first is key `first`: `scale * q . k`, and -inf for the
/// keys from `end` on, which the row does not see.
__device__ void scores(float (&s)[KEYS], const float (&q)[D], const float (&k)[KEYS][D], float scale, int first, int end) {
    TODO("step 3, scores");
}

/// Step 4, lines 9 and 10. What a row knows, after a tile of keys with scores `s` and values `v`:
///
/// line 9: `m_new = max(m, max_j s_j)`, `p_j = e^(s_j - m_new)`, `l = e^(m - m_new) l + sum_j p_j`;
/// line 10: `o = e^(m - m_new) o + sum_j p_j v_j`, and m is m_new.
///
/// Nothing is divided. A hidden key has a weight of 0, and its value may be NaN: it adds nothing to o.
__device__ void update(float (&o)[D], float& l, float& m, const float (&s)[KEYS], const float (&v)[KEYS][D]) {
    TODO("step 4, update");
}

/// Step 5, lines 12 to 15. Stores `o / l` to the D numbers at `out`, and `m + ln l` to `lse`. A row that saw no key has l = 0:
/// its output is 0, its lse -inf.
__device__ void finish(float* out, float* lse, const float (&o)[D], float l, float m) {
    TODO("step 5, finish");
}

/// Step 6, lines 3 to 15. One tile of rows of one head against all the keys that one of its rows sees.
///
/// Every thread of the block loads, also one whose row is not there. A tile of keys is whole when all threads have done their
/// part of it, and may be overwritten when all have read it: `__syncthreads()` waits for all of them. Tiles that no row of
/// this block sees are not loaded.
extern "C" __global__ void __launch_bounds__(ROWS)
    fa2(const float* q, const float* k, const float* v, float* o, float* lse, int q_len, int k_len, int group, float scale, bool causal) {
    __shared__ float k_tile[KEYS][D], v_tile[KEYS][D];
    // The head of this block; `group` query heads share one of k and v.
    const long long head = blockIdx.y, kv_head = head / group;
    q += head * q_len * D, o += head * q_len * D, lse += head * q_len;
    k += kv_head * k_len * D, v += kv_head * k_len * D;
    // Line 3: the first row of its tile, and the row of this thread.
    const int first_row = blockIdx.x * ROWS, i = first_row + threadIdx.x;
    // Line 4.
    float q_i[D];
    for (int c = 0; c < D; ++c) q_i[c] = i < q_len ? q[i * D + c] : 0.0f;
    // Line 5.
    float o_i[D] = {}, l = 0.0f, m = NEG_INFINITY;

    TODO("step 6, fa2");
}
