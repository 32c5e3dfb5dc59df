// What the theme leaves without a name for screen readers, with that of another, or out of the keyboard's reach.
document.querySelector('.md-search')?.setAttribute('aria-label', 'Search')
{
  let count = 0
  const label = () => {
    for (const buttons of document.querySelectorAll('nav.md-code__nav:not([aria-label])')) {
      count += 1
      buttons.setAttribute('aria-label', `Code ${count}`)
    }
  }
  const reach = () => {
    const scrolled = ".md-typeset__scrollwrap, p:has(> img[src$='.png'])"
    for (const part of document.querySelectorAll(scrolled)) part.tabIndex = 0
  }
  for (const list of document.querySelectorAll('.md-nav--secondary .md-nav')) {
    list.setAttribute('aria-label', `${list.getAttribute('aria-label')}, on this page`)
  }
  const all = () => {
    label()
    reach()
  }
  all()
  new MutationObserver(all).observe(document.body, { childList: true, subtree: true }) // the theme adds them late
}
