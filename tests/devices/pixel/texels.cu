// What a texel is made of, tried on the host: the parts that a GPU runs and the simulator's blits do not.
#include "pixel/texture.cuh"

// Takes the lanes of a texel's words, and puts those of [from, to) into one that is empty.
template <class T>
__global__ void take_and_put(const u32* words, T* lanes, u32* put, u32* masks, int from, int to) {
  Texel given, made;
  for (int i = 0; i < 4; ++i) given.words[i] = words[i];
  for (int lane = 0; lane < int(16 / sizeof(T)); ++lane) lanes[lane] = given.get<T>(lane);
  for (int lane = from; lane < to; ++lane) made.put<T>(lane, lanes[lane]);
  for (int i = 0; i < 4; ++i) {
    put[i] = made.words[i];
    masks[i] = made.masks[i];
  }
}

template <class T>
__global__ void __launch_bounds__(256) count_up(const Surface<T> y, i64 count, T first) {
  draw<T>(y, count, [&](i64 index) { return T(first + T(index)); });
}

template <class T>
__global__ void __launch_bounds__(256) put_every_third(const Surface<T> y, i64 count, T value) {
  draw_some<T>(y, count, [&](i64 index, T& made) {
    made = value;
    return index % 3 == 0;
  });
}
