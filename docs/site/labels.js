// Names for screen readers, of what the theme leaves without one.
document.querySelector('.md-search')?.setAttribute('aria-label', 'Search')
{
  let count = 0
  const label = () => {
    for (const buttons of document.querySelectorAll('nav.md-code__nav:not([aria-label])')) {
      count += 1
      buttons.setAttribute('aria-label', `Code ${count}`)
    }
  }
  label()
  new MutationObserver(label).observe(document.body, { childList: true, subtree: true }) // the theme adds them late
}
