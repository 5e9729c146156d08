//! A page as its directory holds it: the table's own, until a snapshot shares it.
//!
//! An own page is changed without a look at a counter that threads share. Most changes find one: only a snapshot shares
//! pages, and the first change after it takes its page back.

use std::mem;
use std::sync::Arc;

use super::page::Page;

/// See the module.
#[derive(Debug, Clone)]
pub(super) enum HeldPage<V> {
    Own(Page<V>),
    /// Snapshots may have it, too.
    Shared(Arc<Page<V>>),
}

impl<V> HeldPage<V> {
    #[inline]
    pub(super) fn get(&self) -> &Page<V> {
        match self {
            HeldPage::Own(page) => page,
            HeldPage::Shared(page) => page,
        }
    }

    /// The page for a snapshot. The next change copies it if the snapshot still has it then.
    pub(super) fn share(&mut self) -> Arc<Page<V>> {
        if let HeldPage::Own(page) = self {
            let page = mem::replace(page, Page::hollow());
            *self = HeldPage::Shared(Arc::new(page));
        }
        match self {
            HeldPage::Shared(page) => Arc::clone(page),
            HeldPage::Own(_) => unreachable!("it is shared above"),
        }
    }
}

impl<V: Clone> HeldPage<V> {
    /// The page, to be changed.
    #[inline]
    pub(super) fn get_mut(&mut self) -> &mut Page<V> {
        if let HeldPage::Shared(_) = self {
            self.own();
        }
        match self {
            HeldPage::Own(page) => page,
            HeldPage::Shared(_) => unreachable!("it is the table's own now"),
        }
    }

    #[cold]
    fn own(&mut self) {
        let held = mem::replace(self, HeldPage::Own(Page::hollow()));
        *self = HeldPage::Own(held.into_page());
    }

    pub(super) fn into_page(self) -> Page<V> {
        match self {
            HeldPage::Own(page) => page,
            HeldPage::Shared(page) => Arc::unwrap_or_clone(page),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_copies_what_a_snapshot_has_and_nothing_else() {
        let value = |page: &Page<i64>| page.get(1, b"key").copied();
        let mut page = Page::of_depth(0);
        page.add(1, b"key", 1, 0);
        let mut held = HeldPage::Own(page);
        let place =
            |held: &HeldPage<i64>| std::ptr::from_ref(held.get().entries().get(0).expect("one"));
        let before = place(&held);
        *held.get_mut().change(1, b"key", 0).expect("there") = 2;
        assert_eq!(place(&held), before);
        let shared = held.share();
        assert!(Arc::ptr_eq(&shared, &held.share()));
        assert_eq!(place(&held), before, "what is shared is not copied");
        *held.get_mut().change(1, b"key", 0).expect("there") = 3;
        assert_eq!((value(&shared), value(held.get())), (Some(2), Some(3)));
        assert_ne!(place(&held), before);
        let (copy, shared) = (place(&held), held.share());
        drop(shared);
        *held.get_mut().change(1, b"key", 0).expect("there") = 4;
        assert_eq!(place(&held), copy, "no snapshot has it any more");
        assert_eq!(value(&held.into_page()), Some(4));
    }
}
