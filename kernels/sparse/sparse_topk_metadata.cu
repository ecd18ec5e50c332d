// Index metadata of DeepSeek-V4's compressed sparse attention.
//
// Compiled at run time by NVRTC, ahead of the first capture, once a GPU architecture. Nothing about a call is a
// compile-time constant: shapes, strides, block size and options are plain arguments, so no new shape ever compiles.
// Every scalar is passed as a 64-bit integer; the host has checked that shapes, strides and grids fit.
//
// A read outside the block table never happens, whatever the indices hold: the indices are data written by another
// kernel, and an unwritten slot of theirs may be any bit pattern.

namespace {

constexpr int kColumnsPerThread = 4;  // one 16-byte store a thread

// The bits of `flags`; the same values stand in options.py.
constexpr long long kMasked = 1;
constexpr long long kBounds = 2;
constexpr long long kIgnoreSlots = 4;

struct Table {
  const int* blocks;
  long long stride;
  long long rows;
  long long columns;
};

// Slot arithmetic wraps at 32 bits like that of every other implementation: a block number whose slots pass 2^31-1
// cannot be stored in the int32 result at all.
__device__ __forceinline__ int slot_of(int block, int block_size, int offset) {
  return static_cast<int>(static_cast<unsigned>(block) * static_cast<unsigned>(block_size) +
                          static_cast<unsigned>(offset));
}

__device__ __forceinline__ void store_columns(int* row, int first, int width, const int (&value)[kColumnsPerThread]) {
  // Row pitches need not be multiples of 16 bytes, so alignment is asked of the address and not of the shape.
  const bool aligned = (reinterpret_cast<unsigned long long>(row + first) & 15ull) == 0;
  if (aligned && first + kColumnsPerThread <= width) {
    *reinterpret_cast<int4*>(row + first) = make_int4(value[0], value[1], value[2], value[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kColumnsPerThread; ++i) {
    if (first + i < width) row[first + i] = value[i];
  }
}

// Compressed tokens of `total` that this rank of a decode context-parallel group owns.
__device__ __forceinline__ long long owned_by_rank(long long total, long long world, long long rank,
                                                   long long interleave) {
  if (world == 1) return total;
  const long long round = interleave * world;
  long long tail = total % round - rank * interleave;
  tail = tail < 0 ? 0 : (tail > interleave ? interleave : tail);
  return total / round * interleave + tail;
}

}  // namespace

// One block writes one tile of blockDim.x * 4 columns of one row. Decode rows [0, decode_tokens) hold global slots,
// the remaining rows local indices.
extern "C" __global__ void c128a_topk_metadata(
    const long long* positions, long long tokens, long long decode_tokens, long long compress_ratio,
    const int* token_to_request, const int* block_table, long long table_stride, long long table_rows,
    long long table_columns, long long block_size, const long long* slot_mapping, int* decode_out,
    long long decode_stride, int* decode_lengths, int* prefill_out, long long prefill_stride, long long width,
    long long tiles, long long actual_tokens, long long dcp_world, long long dcp_rank, long long dcp_interleave,
    long long flags) {
  const long long token = blockIdx.x / static_cast<unsigned>(tiles);
  const int tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles));
  if (token >= tokens) return;

  const bool padded = token >= actual_tokens || (!(flags & kIgnoreSlots) && slot_mapping[token] < 0);
  const bool blank = padded && (flags & kMasked);
  const bool decode = token < decode_tokens;

  long long count = blank ? 0 : (positions[token] + 1) / compress_ratio;
  count = count < 0 ? 0 : (count > width ? width : count);

  const int first = (tile * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kColumnsPerThread;
  int value[kColumnsPerThread];

  if (!decode) {
#pragma unroll
    for (int i = 0; i < kColumnsPerThread; ++i) value[i] = first + i < count ? first + i : -1;
    if (first < width) store_columns(prefill_out + (token - decode_tokens) * prefill_stride, first, static_cast<int>(width), value);
    return;
  }

  const Table table{block_table, table_stride, table_rows, table_columns};
  count = owned_by_rank(count, dcp_world, dcp_rank, dcp_interleave);
  const long long request = blank ? 0 : token_to_request[token];
  const bool known = !blank && request >= 0 && request < table.rows;
  const int* blocks = table.blocks + (known ? request * table.stride : 0);
  const long long covered = known ? table.columns * block_size : 0;  // columns of the row that the table can map
  const long long mapped = count < covered ? count : covered;

  const int bs = static_cast<int>(block_size);
  int column = first / bs;
  int offset = first - column * bs;
  int block = first < mapped ? blocks[column] : 0;
#pragma unroll
  for (int i = 0; i < kColumnsPerThread; ++i) {
    value[i] = first + i < mapped ? slot_of(block, bs, offset) : -1;
    if (++offset == bs) {
      offset = 0;
      ++column;
      if (first + i + 1 < mapped) block = blocks[column];
    }
  }
  if (first < width) store_columns(decode_out + token * decode_stride, first, static_cast<int>(width), value);
  if (tile == 0 && threadIdx.x == 0) {
    decode_lengths[token] = padded ? 0 : static_cast<int>((flags & kBounds) ? mapped : count);
  }
}

// One block a row. `out` may be `indices` itself: a thread reads its own columns before it writes them, and no other.
extern "C" __global__ void c4a_global_topk(
    const int* indices, long long indices_stride, long long rows, long long width, const int* token_to_request,
    const int* block_table, long long table_stride, long long table_rows, long long table_columns,
    long long block_size, const unsigned char* valid, long long valid_bytes, int* out, long long out_stride,
    int* lengths, long long flags) {
  __shared__ int total;
  const long long row = blockIdx.x;
  if (row >= rows) return;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();

  // A flag of 1, 4 or 8 bytes is true if any of its bytes is: the same answer for bool, uint8, int32 and int64.
  bool is_valid = false;
  for (int i = 0; i < static_cast<int>(valid_bytes); ++i) is_valid |= valid[row * valid_bytes + i] != 0;
  const bool blank = !is_valid && (flags & kMasked);

  const long long request = blank ? 0 : token_to_request[row];
  const bool known = !blank && request >= 0 && request < table_rows;
  const int* blocks = block_table + (known ? request * table_stride : 0);
  const int bs = static_cast<int>(block_size);
  const int* source = indices + row * indices_stride;
  int* target = out + row * out_stride;

  int counted = 0;
  for (int first = static_cast<int>(threadIdx.x) * kColumnsPerThread; first < width;
       first += static_cast<int>(blockDim.x) * kColumnsPerThread) {
    int value[kColumnsPerThread];
#pragma unroll
    for (int i = 0; i < kColumnsPerThread; ++i) {
      value[i] = -1;
      if (first + i >= width || blank) continue;
      const int index = source[first + i];
      if (index < 0) continue;
      const int column = index / bs;
      const bool inside = known && column < table_columns;
      if (inside) value[i] = slot_of(blocks[column], bs, index - column * bs);
      counted += inside || !(flags & kBounds);
    }
    store_columns(target, first, static_cast<int>(width), value);
  }
  if (counted) atomicAdd(&total, counted);
  __syncthreads();
  if (threadIdx.x == 0) lengths[row] = is_valid ? total : 0;
}
