// One attention call as the host passes it, and one head of it as a kernel reads it.
//
// What a score is stands here once, for every kernel: scale, soft cap, ALiBi, bias, mask, in this order. The host mirrors
// the first four structs (crates/cuda-fa2/src/params.rs).
#pragma once
#include "ptx/cvt.cuh"

constexpr float NEG_INFINITY = __builtin_bit_cast(float, 0xff800000u);

/// A tensor in device memory; strides in elements. A packed tensor has a batch stride of 0.
struct Tensor {
    void* data;
    long long batch, head, row, channel;
};

/// One sequence of the batch: its place on the batch axis, and its rows in q and in k and v.
struct Sequence {
    int batch, q_start, q_len, k_start, k_len;
};

/// The options of a call. Pointers are null for what is not asked for.
struct Options {
    float scale, softcap;  // a soft cap of 0 is none
    int left, right;       // keys before and after its own that a row sees; -1 is no limit
    const float* sinks;    // [heads]
    Tensor slopes;         // f32 [batch, heads]
    Tensor bias;           // f32 [batch, heads, q_len, k_len]
};

/// Everything a kernel is told.
struct Problem {
    Tensor q, k, v, o, lse;  // lse is f32 and has no channels
    Options options;
    const Sequence* sequences;  // null where all lie on the batch axis, as long as each other
    int batch, heads, group;    // `group` query heads share a kv head
    int d, d_v;
    int row_tiles;     // tiles of rows of the longest sequence, for kernels that work in tiles
    int q_len, k_len;  // of the longest sequence

    __device__ Sequence sequence(int b) const { return sequences ? sequences[b] : Sequence{b, 0, q_len, 0, k_len}; }
};

/// Four elements that are loaded at once.
template <class T> struct alignas(4 * sizeof(T)) Four {
    T x[4];
};

/// Rows of one head, [len, channels], where they lie.
template <class T> struct Rows {
    T* data;
    long long row, channel;
    int len, channels;

    __device__ T& operator()(int i, int c) const { return data[i * row + c * channel]; }
    /// An element as f32; 0 outside the matrix, so that what lies behind a sequence's end never reaches a product.
    __device__ float get(int i, int c) const { return i < len && c < channels ? to_f32((*this)(i, c)) : 0.0f; }

    /// Whether four channels from a multiple of 4 on can be loaded at once, as [`Four`].
    __device__ bool in_fours() const {
        return channel == 1 && row % 4 == 0 && channels % 4 == 0 && (unsigned long long)data % sizeof(Four<T>) == 0;
    }
    /// Where row i begins.
    __device__ T* at(int i) const { return data + i * row; }
    /// Whether eight numbers of 2 bytes from a multiple of 8 on can be copied at once.
    __device__ bool in_chunks() const {
        return channel == 1 && row % 8 == 0 && (unsigned long long)data % 16 == 0;
    }
    /// The four channels from c on that begin at `at`, zeros behind the last; `IN_FOURS` if [`Rows::in_fours`].
    template <bool IN_FOURS> __device__ Four<T> four(const T* at, int c) const {
        if constexpr (IN_FOURS) return *(const Four<T>*)at;
        Four<T> four = {};
        for (int e = 0; e < 4; ++e) {
            if (c + e < channels) four.x[e] = at[e * channel];
        }
        return four;
    }
};

/// The range of keys that a row sees.
struct Range {
    int start, end;
};

/// What rows see of keys by the mask.
struct Sight {
    int q_len, k_len;
    int left, right;  // as in [`Options`]

    /// The keys that row `i` sees: aligned to the bottom right, the last row sits on the last key. Lengths and limits are below
    /// 2^30.
    __device__ Range visible(int i) const {
        const int own = i + k_len - q_len;
        const int start = left < 0 ? 0 : clamp(own - left), end = right < 0 ? k_len : clamp(own + right + 1);
        return {start, max(start, end)};
    }

  private:
    __device__ int clamp(int key) const { return max(0, min(k_len, key)); }
};

/// q . k in f64, for a product that overflows f32 though the score may not.
template <class T>
__device__ __noinline__ double wide_dot(const T* q, long long q_channel, const T* k, long long k_channel, int channels) {
    double dot = 0.0;
    for (int c = 0; c < channels; ++c) dot += (double)to_f32(q[c * q_channel]) * (double)to_f32(k[c * k_channel]);
    return dot;
}

/// One query head of one sequence.
template <class T> struct Head {
    Rows<T> q, k, v, o;
    float* lse;
    const float* bias;
    long long lse_row, bias_row, bias_key;
    float scale, softcap, slope, sink;
    int left, right;

    Head() = default;  // for one in shared memory

    /// Head `head` of sequence `sequence`.
    __device__ Head(const Problem& p, int sequence, int head) {
        const Sequence s = p.sequence(sequence);
        q = rows(p.q, s.batch, head, s.q_start, s.q_len, p.d);
        k = rows(p.k, s.batch, head / p.group, s.k_start, s.k_len, p.d);
        v = rows(p.v, s.batch, head / p.group, s.k_start, s.k_len, p.d_v);
        o = rows(p.o, s.batch, head, s.q_start, s.q_len, p.d_v);
        lse = (float*)p.lse.data + s.batch * p.lse.batch + head * p.lse.head + s.q_start * p.lse.row;
        lse_row = p.lse.row;
        const Options& options = p.options;
        const Tensor& b = options.bias;
        bias = b.data ? (const float*)b.data + sequence * b.batch + head * b.head : nullptr;
        bias_row = b.row, bias_key = b.channel;
        const Tensor& slopes = options.slopes;
        slope = slopes.data ? ((const float*)slopes.data)[sequence * slopes.batch + head * slopes.head] : 0.0f;
        sink = options.sinks ? options.sinks[head] : NEG_INFINITY;
        scale = options.scale, softcap = options.softcap, left = options.left, right = options.right;
    }

    /// The keys that row `i` sees by the mask.
    __device__ Range visible(int i) const { return Sight{q.len, k.len, left, right}.visible(i); }

    /// The keys that at least one of the rows from `first` to before `end` sees: neither end of `visible` ever falls.
    __device__ Range visible_to_any(int first, int end) const { return {visible(first).start, visible(end - 1).end}; }

    /// Whether a visible score is `scale * (q . k)` and nothing else.
    __device__ bool only_scales() const { return softcap == 0.0f && slope == 0.0f && !bias; }

    /// The score of row `i` and key `j`, given their product; -inf where the mask or the bias hides the key.
    __device__ float score(float dot, int i, int j) const {
        const Range keys = visible(i);
        return j < keys.start || j >= keys.end ? NEG_INFINITY : visible_score(dot, i, j);
    }

    /// The score of a key that the mask lets row `i` see.
    __device__ float visible_score(float dot, int i, int j) const {
        float s = isfinite(dot)
            ? scale * dot
            : (float)(scale * wide_dot(&q(i, 0), q.channel, &k(j, 0), k.channel, q.channels));
        if (softcap > 0.0f) s = softcap * tanhf(s / softcap);
        if (slope != 0.0f) s -= slope * fabsf((float)((long long)i + k.len - q.len - j));
        if (bias) s = bias_hides(i, j) ? NEG_INFINITY : s + bias_of(i, j);
        return s;
    }

    /// Whether the bias hides key `j` from row `i`, whatever its score is.
    __device__ bool bias_hides(int i, int j) const { return bias && bias_of(i, j) == NEG_INFINITY; }

    /// Writes row `i` of lse.
    __device__ void store_lse(int i, float value) const { lse[i * lse_row] = value; }

  private:
    __device__ float bias_of(int i, int j) const { return bias[i * bias_row + j * bias_key]; }

    __device__ static Rows<T> rows(const Tensor& t, int batch, int head, int start, int len, int channels) {
        T* data = (T*)t.data + batch * t.batch + head * t.head + start * t.row;
        return {data, t.row, t.channel, len, channels};
    }
};
