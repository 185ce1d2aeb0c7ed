// Texture access for tensors. A texel has four channels of 32 bits, read as bits.
//
// The bytes of a tensor lie in texels as they would in memory, row after row of kTexelsPerRow: byte b is byte b % 16 of texel
// (b / 16 % kTexelsPerRow, b / 16 / kTexelsPerRow). So a reshaped tensor is the same texels, and one texture may hold many
// tensors. A thread writes one texel, and of a texel that belongs to two tensors only the bytes of its own.
//
// The simulator has one texture, of all memory: its first texel lies at address 0.
#pragma once
#include "types.cuh"

constexpr int kTexelBytes = 16;
constexpr u32 kTexelsPerRow = 4096;  // TEXELS_PER_ROW of gpuexec/devices/pixel/extents.py
constexpr int kDrawThreads = 256;    // THREADS of gpuexec/ops/lib/pixel.py

#ifdef GPUEXEC_SIM
#define GPUEXEC_TEXTURE_INLINE GPUEXEC_ALWAYS
#else
#define GPUEXEC_TEXTURE_INLINE __forceinline__
#endif

// The four channels of a texel, and which of their bits were put there.
struct Texel {
  u32 words[4], masks[4];

  __device__ Texel() {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = masks[i] = 0;
  }

  // Lane `lane` of the 16 / sizeof(T) that a texel has.
  template <class T>
  __device__ T get(int lane) const {
    if constexpr (sizeof(T) == 8) {
      return reinterpret<T>(u64(word(2 * lane)) | u64(word(2 * lane + 1)) << 32);
    } else {
      constexpr int kPerWord = 4 / sizeof(T);
      return reinterpret<T>(Bits<T>(word(lane / kPerWord) >> lane % kPerWord * int(8 * sizeof(T))));
    }
  }

  template <class T>
  __device__ void put(int lane, T value) {
    const Bits<T> bits = reinterpret<Bits<T>>(value);
    if constexpr (sizeof(T) == 8) {
      put_word(2 * lane, u32(bits), ~0u);
      put_word(2 * lane + 1, u32(bits >> 32), ~0u);
    } else {
      constexpr int kPerWord = 4 / sizeof(T);
      const int shift = lane % kPerWord * int(8 * sizeof(T));
      put_word(lane / kPerWord, u32(bits) << shift, u32(Bits<T>(~Bits<T>(0))) << shift);
    }
  }

  __device__ bool is_whole() const { return (masks[0] & masks[1] & masks[2] & masks[3]) == ~0u; }

 private:
  // Registers can't be indexed, so each is compared.
  __device__ u32 word(int index) const {
    const u32 low = index == 0 ? words[0] : words[1];
    const u32 high = index == 2 ? words[2] : words[3];
    return index < 2 ? low : high;
  }

  __device__ void put_word(int index, u32 bits, u32 mask) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i != index) continue;
      words[i] = (words[i] & ~mask) | bits;
      masks[i] |= mask;
    }
  }
};

#ifdef GPUEXEC_SIM
template <class T>
GPUEXEC_TEXTURE_INLINE T* lane_at(u32 x, u32 y, int lane) {
  return reinterpret_cast<T*>((u64(y) * kTexelsPerRow + x) * kTexelBytes) + lane;
}
#endif

// One lane of a texel, through a texture object with point sampling.
template <class T>
__device__ GPUEXEC_TEXTURE_INLINE T fetch(u64 texture, u32 x, u32 y, int lane) {
#ifdef GPUEXEC_SIM
  return *lane_at<const T>(x, y, lane);
#else
  const uint4 channels = tex2D<uint4>(cudaTextureObject_t(texture), float(x) + 0.5f, float(y) + 0.5f);
  Texel texel;
  texel.words[0] = channels.x;
  texel.words[1] = channels.y;
  texel.words[2] = channels.z;
  texel.words[3] = channels.w;
  return texel.get<T>(lane);
#endif
}

// Writes the lanes [from, to) of a texel, through a surface object, and keeps the others. No other thread writes the texel
// in between, since blits of one device run one after the other.
template <class T>
__device__ GPUEXEC_TEXTURE_INLINE void write(u64 surface, u32 x, u32 y, const Texel& texel, int from, int to) {
#ifdef GPUEXEC_SIM
  for (int lane = from; lane < to; ++lane) *lane_at<T>(x, y, lane) = texel.get<T>(lane);
#else
  uint4 channels = make_uint4(texel.words[0], texel.words[1], texel.words[2], texel.words[3]);
  if (!texel.is_whole()) {
    const uint4 old = surf2Dread<uint4>(cudaSurfaceObject_t(surface), int(x * kTexelBytes), int(y));
    channels.x |= old.x & ~texel.masks[0];
    channels.y |= old.y & ~texel.masks[1];
    channels.z |= old.z & ~texel.masks[2];
    channels.w |= old.w & ~texel.masks[3];
  }
  surf2Dwrite(channels, cudaSurfaceObject_t(surface), int(x * kTexelBytes), int(y));
#endif
}

// A tensor to read: a texture object, and the byte of it that the first element begins with. None where it is absent.
template <class T>
struct Texture {
#ifndef GPUEXEC_SIM
  u64 texture;
#endif
  u64 first;

  __device__ GPUEXEC_TEXTURE_INLINE u64 object() const {
#ifdef GPUEXEC_SIM
    return 0;
#else
    return texture;
#endif
  }

  __device__ explicit operator bool() const {
#ifdef GPUEXEC_SIM
    return first != 0;
#else
    return texture != 0;
#endif
  }

  __device__ GPUEXEC_TEXTURE_INLINE T operator[](i64 index) const {
    const u64 byte = first + u64(index) * sizeof(T);
    const u64 texel = byte / kTexelBytes;
    const int lane = int(byte % kTexelBytes / sizeof(T));
    return fetch<T>(object(), u32(texel % kTexelsPerRow), u32(texel / kTexelsPerRow), lane);
  }

  __device__ GPUEXEC_TEXTURE_INLINE T operator*() const { return (*this)[0]; }

  // What begins some elements behind, as with a pointer.
  __device__ GPUEXEC_TEXTURE_INLINE Texture operator+(i64 elements) const {
    Texture other = *this;
    other.first += u64(elements) * sizeof(T);
    return other;
  }

  // The same texels as elements of another type.
  template <class To>
  __device__ Texture<To> as() const {
    Texture<To> other;
#ifndef GPUEXEC_SIM
    other.texture = texture;
#endif
    other.first = first;
    return other;
  }
};

// A tensor to write: a surface object, and the byte of it that the first element begins with.
template <class T>
struct Surface {
#ifndef GPUEXEC_SIM
  u64 surface;
#endif
  u64 first;

  __device__ GPUEXEC_TEXTURE_INLINE u64 object() const {
#ifdef GPUEXEC_SIM
    return 0;
#else
    return surface;
#endif
  }

  template <class To>
  __device__ Surface<To> as(u64 byte = 0) const {
    Surface<To> other;
#ifndef GPUEXEC_SIM
    other.surface = surface;
#endif
    other.first = first + byte;
    return other;
  }
};

#ifdef GPUEXEC_SIM
namespace gpuexec {
template <class T>
struct Kind<::Texture<T>> {
  static constexpr char value = 'P';
};
template <class T>
struct Kind<::Surface<T>> {
  static constexpr char value = 'P';
};
}  // namespace gpuexec
#endif

// Writes the texel of this thread: element(i, value) says for each of its elements i whether there is one, and what it is.
template <class T, class Element>
__device__ inline void draw_some(const Surface<T>& y, i64 count, Element element) {
  constexpr int kLanes = kTexelBytes / sizeof(T);
  const i64 thread = i64(blockIdx.x) * kDrawThreads + threadIdx.x;
  const i64 begin = thread * kLanes - i64(y.first % kTexelBytes / sizeof(T));
  if (begin >= count) return;
  const u64 place = y.first / kTexelBytes + u64(thread);
  const u32 column = u32(place % kTexelsPerRow), row = u32(place / kTexelsPerRow);
  const int from = begin < 0 ? int(-begin) : 0;
  const int to = count - begin < kLanes ? int(count - begin) : kLanes;
  Texel texel;
  int first = -1, last = -1;  // of the lanes that lie together so far
  for (int lane = from; lane < to; ++lane) {
    T value;
    if (!element(begin + lane, value)) continue;
#ifdef GPUEXEC_SIM
    if (last >= 0 && lane != last) {
      write<T>(y.object(), column, row, texel, first, last);
      first = -1;
    }
#endif
    texel.put(lane, value);
    first = first < 0 ? lane : first;
    last = lane + 1;
  }
  if (first >= 0) write<T>(y.object(), column, row, texel, first, last);
}

// Writes the texel of this thread: element(i) for each of its elements i below `count`.
template <class T, class Element>
__device__ inline void draw(const Surface<T>& y, i64 count, Element element) {
  draw_some<T>(y, count, [&](i64 index, T& value) {
    value = element(index);
    return true;
  });
}
