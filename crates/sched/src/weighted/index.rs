//! Indices of tenants, queues, devices and back ends, each of a type of its own, and the tables that take them. An index
//! into one table does not compile as an index into another, and becomes none: only a [`TenantId`], a [`QueueId`] or a
//! [`BackEnd`](crate::BackEnd) of the caller, or the table that made it, is where one comes from.

use std::marker::PhantomData;

use crate::{QueueId, TenantId};

/// The number of a row of a [`Table`].
pub(super) trait RowIndex: Copy + Eq {
    /// No row.
    const NIL: Self;

    fn from_row(row: usize) -> Self;

    fn row(self) -> usize;
}

macro_rules! row_index {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) struct $name(u32);

        impl RowIndex for $name {
            const NIL: Self = $name(u32::MAX);

            #[inline(always)]
            fn from_row(row: usize) -> Self {
                $name(row as u32)
            }

            #[inline(always)]
            fn row(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

row_index! {
    /// A tenant: its [`TenantId`].
    TenantIndex;
    /// A queue: [`QueueId::index`].
    QueueIndex;
    /// A device of the [tree](super::tree).
    DeviceIndex;
    /// A tenant's share of a back end.
    ShareIndex;
    /// A back end: [`BackEnd::index`](crate::BackEnd::index).
    BackEndIndex;
}

impl From<TenantId> for TenantIndex {
    #[inline(always)]
    fn from(tenant: TenantId) -> TenantIndex {
        TenantIndex(tenant.0.into())
    }
}

impl From<TenantIndex> for TenantId {
    #[inline(always)]
    fn from(tenant: TenantIndex) -> TenantId {
        TenantId(tenant.0 as u16)
    }
}

impl From<QueueId> for QueueIndex {
    #[inline(always)]
    fn from(queue: QueueId) -> QueueIndex {
        QueueIndex(queue.index)
    }
}

impl QueueIndex {
    /// The queue with this index, which is of that tenant.
    #[inline(always)]
    pub(super) fn of(self, tenant: TenantIndex) -> QueueId {
        QueueId { tenant: tenant.into(), index: self.0 }
    }
}

impl From<crate::BackEnd> for BackEndIndex {
    fn from(back_end: crate::BackEnd) -> BackEndIndex {
        BackEndIndex(back_end.index)
    }
}

/// An index or none, in four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Maybe<I>(I);

impl<I: RowIndex> Maybe<I> {
    pub(super) const NONE: Maybe<I> = Maybe(I::NIL);

    #[inline(always)]
    pub(super) fn get(self) -> Option<I> {
        (self.0 != I::NIL).then_some(self.0)
    }
}

impl<I: RowIndex> From<I> for Maybe<I> {
    #[inline(always)]
    fn from(index: I) -> Maybe<I> {
        Maybe(index)
    }
}

/// Rows by their indices of one type.
#[derive(Debug)]
pub(super) struct Table<I, T> {
    rows: Vec<T>,
    index: PhantomData<I>,
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Table { rows: Vec::new(), index: PhantomData }
    }
}

impl<I: RowIndex, T> Table<I, T> {
    /// Adds a row. Its index.
    pub(super) fn push(&mut self, row: T) -> I {
        self.rows.push(row);
        I::from_row(self.rows.len() - 1)
    }

    /// Adds rows until there is one of this index.
    pub(super) fn grow_to(&mut self, index: I, row: impl FnMut() -> T) {
        if self.rows.len() <= index.row() {
            self.rows.resize_with(index.row() + 1, row);
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, index: I) -> Option<&T> {
        self.rows.get(index.row())
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, index: I) -> Option<&mut T> {
        self.rows.get_mut(index.row())
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.rows.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.rows.iter_mut()
    }
}

impl<I: RowIndex, T> std::ops::Index<I> for Table<I, T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, index: I) -> &T {
        &self.rows[index.row()]
    }
}

impl<I: RowIndex, T> std::ops::IndexMut<I> for Table<I, T> {
    #[inline(always)]
    fn index_mut(&mut self, index: I) -> &mut T {
        &mut self.rows[index.row()]
    }
}
