// Walk over the rows of a region: which row a team has, and where its elements lie.
#pragma once
#include "folds.cuh"
#include "region.cuh"

// What a launch says of places: the rows and their length, lanes of a team, extents of all axes of rows but the outermost, and
// strides of operands along the axes of rows that they move on, then along columns where that is not 0 or 1. Packed by
// gpuexec/ops/elementwise/row_kernel.py.
template <class OffsetType, int Extents, int Strides>
struct RowWalk {
  typedef OffsetType Offset;
  Offset rows, columns;
  i32 lanes, unused;
  DivisorOf<Offset> extents[Extents > 0 ? Extents : 1];
  Offset strides[Strides > 0 ? Strides : 1];
};

// The row of a team. Teams beyond the last one are given the first row and no columns, since all threads take part in folds.
template <class Offset>
struct RowPlace {
  bool is_live;
  Offset row, end;
  Offset first;  // of the row's elements in results

  template <class Walk>
  __device__ RowPlace(const Walk& walk, const Team& team)
      : is_live(team.row < walk.rows),
        row(is_live ? Offset(team.row) : Offset(0)),
        end(is_live ? walk.columns : Offset(0)),
        first(row * walk.columns) {}
};
