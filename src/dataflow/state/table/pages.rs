//! The pages of a `Directory` (of hashes, not of files), in pieces: a snapshot shares them without a look at each page.
//!
//! ```text
//! Pages ──▶ piece: 64 pages ──▶ Page          pieces and pages are reference-counted
//! ```
//!
//! A snapshot shares the pieces. The first change in a shared piece copies the piece's list; the pages stay shared. The
//! first change in a shared page copies the page. So a task that is stopped for a snapshot looks at the pieces alone:
//! some hundreds for a gigabyte.
//!
//! The counters are those of `triomphe`, which have no weak references: one load says whether a piece or a page is
//! shared.

use triomphe::Arc;

use super::page::Page;

/// Pages of a piece. All pieces but the last one have as many.
const PIECE: usize = 64;

type Piece<V> = Vec<Arc<Page<V>>>;

/// See the module. Pages are numbered in the order in which they were added.
#[derive(Debug, Clone)]
pub(super) struct Pages<V> {
    pieces: Vec<Arc<Piece<V>>>,
}

impl<V> Pages<V> {
    pub(super) fn new() -> Pages<V> {
        Pages { pieces: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        let last = self.pieces.last().map_or(0, |piece| piece.len());
        self.pieces.len().saturating_sub(1) * PIECE + last
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> &Page<V> {
        &self.pieces[number / PIECE][number % PIECE]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Page<V>> {
        self.pieces
            .iter()
            .flat_map(|piece| piece.iter())
            .map(|page| &**page)
    }

    /// The pages of these numbers, shared with this list until the caller drops them.
    pub(super) fn shared(&self, numbers: impl Iterator<Item = usize>) -> Vec<Arc<Page<V>>> {
        let shared = numbers.map(|it| Arc::clone(&self.pieces[it / PIECE][it % PIECE]));
        shared.collect()
    }

    /// A page, to be changed. It is copied if a snapshot has it.
    #[inline]
    pub(super) fn get_mut(&mut self, number: usize) -> &mut Page<V>
    where
        V: Clone,
    {
        let piece = Arc::make_mut(&mut self.pieces[number / PIECE]);
        Arc::make_mut(&mut piece[number % PIECE])
    }

    /// Adds a page. Returns its number.
    pub(super) fn push(&mut self, page: Page<V>) -> usize {
        self.push_shared(Arc::new(page))
    }

    fn push_shared(&mut self, page: Arc<Page<V>>) -> usize {
        let number = self.len();
        if number.is_multiple_of(PIECE) {
            // Most namespaces have one page.
            let room = if number == 0 { 1 } else { PIECE };
            self.pieces.push(Arc::new(Vec::with_capacity(room)));
        }
        let last = self.pieces.last_mut().expect("one with room is there");
        Arc::make_mut(last).push(page);
        number
    }

    /// Adds all pages of another list.
    pub(super) fn append(&mut self, other: Pages<V>) {
        for page in other.into_iter() {
            self.push_shared(page);
        }
    }

    /// The pages, in order. What a snapshot has is shared with it.
    pub(super) fn into_iter(self) -> impl Iterator<Item = Arc<Page<V>>> + use<V> {
        self.pieces.into_iter().flat_map(Arc::unwrap_or_clone)
    }
}

impl<V> FromIterator<Page<V>> for Pages<V> {
    fn from_iter<I: IntoIterator<Item = Page<V>>>(pages: I) -> Pages<V> {
        let mut all = Pages::new();
        for page in pages {
            all.push(page);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(value: i64) -> Page<i64> {
        let mut page = Page::of_depth(0);
        page.add(1, b"key", value, 0);
        page
    }

    fn values(pages: &Pages<i64>) -> Vec<Option<i64>> {
        pages
            .iter()
            .map(|page| page.get(1, b"key").copied())
            .collect()
    }

    fn place(pages: &Pages<i64>, number: usize) -> *const Page<i64> {
        std::ptr::from_ref(pages.get(number))
    }

    fn set(pages: &mut Pages<i64>, number: usize, value: i64) {
        *pages.get_mut(number).change(1, b"key", 0).expect("there") = value;
    }

    #[test]
    fn they_are_a_list() {
        let numbers = 0..200;
        let mut pages: Pages<i64> = numbers.clone().map(page).collect();
        assert_eq!((pages.len(), pages.push(page(200))), (200, 200));
        let other: Pages<i64> = (201..300).map(page).collect();
        pages.append(other);
        let replaced = std::mem::replace(pages.get_mut(7), page(-7));
        assert_eq!(replaced.get(1, b"key"), Some(&7));
        let expected = (0..300).map(|it| if it == 7 { -7 } else { it });
        let expected: Vec<Option<i64>> = expected.map(Some).collect();
        assert_eq!(values(&pages), expected);
        let some = pages.shared([299, 0].into_iter());
        assert_eq!(some[0].get(1, b"key"), Some(&299));
        let all = pages.into_iter().map(|page| page.get(1, b"key").copied());
        assert_eq!(all.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_change_copies_the_page_that_a_snapshot_has_and_nothing_else() {
        let mut pages: Pages<i64> = (0..100).map(page).collect();
        let before = [place(&pages, 1), place(&pages, 2)];
        set(&mut pages, 1, 10);
        assert_eq!(place(&pages, 1), before[0], "no snapshot has it");
        let snapshot = pages.clone();
        assert_eq!(
            place(&snapshot, 1),
            before[0],
            "what is shared is not copied"
        );
        set(&mut pages, 1, 11);
        assert_ne!(place(&pages, 1), before[0]);
        assert_eq!(place(&pages, 2), before[1]);
        assert_eq!(
            (values(&snapshot)[1], values(&pages)[1]),
            (Some(10), Some(11))
        );
        let copied = place(&pages, 1);
        drop(snapshot);
        set(&mut pages, 1, 12);
        set(&mut pages, 2, 20);
        let after = [place(&pages, 1), place(&pages, 2)];
        assert_eq!(after, [copied, before[1]], "no snapshot has them any more");
    }

    #[test]
    fn a_snapshot_lets_go_of_a_page_when_it_is_done_with_it() {
        let mut pages: Pages<i64> = (0..100).map(page).collect();
        let snapshot = pages.clone();
        let mut shared = snapshot.shared(0..100).into_iter();
        drop(snapshot);
        let before = [place(&pages, 0), place(&pages, 1)];
        drop(shared.next());
        set(&mut pages, 0, 1);
        set(&mut pages, 1, 2);
        assert_eq!(place(&pages, 0), before[0], "it was let go");
        assert_ne!(place(&pages, 1), before[1], "it is still to be done");
    }
}
