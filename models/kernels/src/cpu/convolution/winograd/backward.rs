//! The backward pass of a convolution in tiles.

use super::{CACHED_BACKWARD, Filters, ResultGradients, Tiles, place_mut, plane};
use crate::cpu::convolution::gathered::SMALLEST_CHUNK;
use crate::cpu::flex;
use crate::cpu::gemm::{Epilogue, MatrixMut, gemm};
use crate::cpu::threads::sums::Sums;
use crate::cpu::threads::{Buffer, Chunks, Shared, parallel};
use burn::backend::flex::FlexTensor;
use std::ops::Range;

impl Tiles<'_> {
    /// The gradients of x, for which the transposed filters are needed, and of the weight, if it is wanted.
    pub(in super::super) fn gradients(
        &self,
        x: &[f32],
        transposed: Option<Filters>,
        of: ResultGradients<'_>,
        weight_wanted: bool,
    ) -> [Option<FlexTensor>; 2] {
        let maps = self.maps;
        let (inputs, width) = (maps.in_channels, maps.out_channels);
        let (image, result) = (maps.image(), self.result_of_image());
        let (filters, x_wanted) = (transposed.as_ref(), transposed.is_some());
        if self.has_many_channels() {
            return self.gradients_by_place(x, filters, of, weight_wanted);
        }
        // Whole images, so that no two tasks add to the same pixel.
        let chunks = Chunks::few(maps.images, SMALLEST_CHUNK.div_ceil(maps.places().max(1)));
        let mut dx = Buffer::new(if x_wanted { maps.images * image } else { 0 });
        let mut dweight = Sums::new(if weight_wanted { maps.taps() * width } else { 0 }, chunks.count());
        {
            let (dx, dweight) = (dx.shared(), dweight.shared());
            parallel(chunks.count(), |index| {
                let images = chunks.range(index);
                let x = &x[images.start * image..images.end * image];
                let of = of.of(&images, result);
                // SAFETY: the chunks are disjoint, and with them their images.
                let dx = x_wanted.then(|| unsafe { dx.slice(images.start * image..images.end * image) });
                // SAFETY: each chunk has its own sums.
                let dweight = weight_wanted.then(|| unsafe { dweight.part(index) });
                self.write_gradients((x, images.len()), of, filters.zip(dx), dweight);
            });
        }
        let shape = [maps.images, maps.input[0], maps.input[1], inputs];
        // SAFETY: the gradient is wanted, so each chunk's task wrote its images.
        let dx = x_wanted.then(|| flex::tensor(unsafe { dx.written() }, shape));
        // SAFETY: the gradient is wanted, so each chunk's task wrote its sums.
        let dweight = weight_wanted.then(|| flex::tensor(unsafe { dweight.total() }, [maps.taps(), width]));
        [dx, dweight]
    }

    /// The gradients of so many images, which `x`, `of` and `dx` hold; for dx, the transposed filters are needed.
    fn write_gradients(
        &self,
        (x, images): (&[f32], usize),
        of: ResultGradients<'_>,
        mut dx: Option<(&Filters, &mut [f32])>,
        dweight: Option<&mut [f32]>,
    ) {
        let (inputs, width) = (self.maps.in_channels, self.maps.out_channels);
        let tile_count = self.count(images);
        let most = self.at_a_time(CACHED_BACKWARD).min(tile_count).max(1);
        let mut du = vec![0.0; if dweight.is_some() { self.form.places() * inputs * width } else { 0 }];
        if let Some((_, dx)) = &mut dx {
            dx.fill(0.0);
        }
        // The memory of v holds the gradient of v afterwards.
        self.with_memory(most, |v, dm| {
            for tiles in Chunks::of(tile_count, most).ranges_after(0) {
                self.transform_gradients(of, tiles.clone(), dm);
                if dweight.is_some() {
                    self.transform(x, tiles.clone(), v);
                    self.add_to_du(v, dm, tiles.len(), &mut du);
                }
                if let Some((filters, dx)) = &mut dx {
                    self.add_to_dx(filters, dm, tiles, v, dx);
                }
            }
        });
        if let Some(dweight) = dweight {
            let size = inputs * width;
            // SAFETY: this task alone has these sums.
            unsafe { (self.form.weight_gradient)(&du, size, 0..size, Shared::new(dweight)) };
        }
    }

    /// Adds `v^T dm` of `count` tiles to the gradient of the transformed filters.
    fn add_to_du(&self, v: &[f32], dm: &[f32], count: usize, du: &mut [f32]) {
        let (inputs, width) = (self.maps.in_channels, self.maps.out_channels);
        for (index, du) in du.chunks_exact_mut(inputs * width).enumerate() {
            let (v, dm) = (self.place(v, index, count, inputs), self.place(dm, index, count, width));
            let du = MatrixMut::row_major(du, width);
            v.multiply_columns(du, Epilogue::Accumulate, dm, |du, epilogue, scale, v, dm| {
                gemm(du, epilogue, scale, v, dm, false);
            });
        }
    }

    /// Adds the gradients of some tiles, `dv = dm u^T` transformed back, to the gradients of their pixels.
    fn add_to_dx(&self, filters: &Filters, dm: &[f32], tiles: Range<usize>, dv: &mut [f32], dx: &mut [f32]) {
        let (inputs, width, count) = (self.maps.in_channels, self.maps.out_channels, tiles.len());
        for index in 0..self.form.places() {
            let (dm, dv) = (self.place(dm, index, count, width), place_mut(dv, index, count, inputs));
            filters.multiply(index, dv, dm, |dv, dm, u| gemm(dv, Epilogue::Overwrite, 1.0, dm, u, false));
        }
        for (index, tile) in tiles.enumerate() {
            let gradients = &dv[index * inputs..];
            (self.form.add_to_pixels)(gradients, plane(count, inputs), inputs, &self.inputs(tile), dx);
        }
    }
}
