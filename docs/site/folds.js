// On a phone, what few readers need is folded: a long config in a card, the help of a script, tables of names but for the first,
// and of a method or helper of the reference all but its first sentence. Of a page of more than eleven screens, all sections
// but the first are folded: each h2, or each h3 where the section has no text of its own.
if (matchMedia('(max-width: 44.9em)').matches) {
  const fold = (elements, text) => {
    const details = document.createElement('details')
    const summary = document.createElement('summary')
    summary.textContent = text
    elements[0].before(details)
    details.append(summary, ...elements)
    return details
  }
  for (const block of document.querySelectorAll('.md-typeset :is(.task, .help) .highlight')) {
    const lines = block.textContent.trim().split('\n').length
    if (lines < 10) continue
    fold([block], `Show the ${block.closest('.task') ? 'config' : 'arguments'}, ${lines} lines`)
  }
  for (const heading of document.querySelectorAll('h3.doc-heading')) {
    const entry = heading.parentElement
    const signature = entry.querySelector(':scope > .doc-signature')
    const contents = entry.querySelector(':scope > .doc-contents')
    if (!contents || entry.offsetHeight < 400) continue
    const paragraphs = [...contents.children]
    const isImport = paragraphs[0]?.textContent.startsWith('from ')
    const rest = paragraphs.slice(isImport ? 2 : 1)
    const titles = rest.flatMap((element) => [...element.querySelectorAll(':scope > .doc-section-title')])
    const parts = titles.map((title) => title.textContent.replace(':', '').toLowerCase())
    const shown = signature ? [signature, ...rest] : rest
    if (!shown.length) continue
    const details = fold(shown, ['Signature', ...parts].join(', '))
    contents.append(details)
  }
  const heads = [...document.querySelectorAll('article th')].filter((head) => head.textContent === 'import from')
  for (const [index, head] of heads.entries()) {
    const table = head.closest('table')
    const part = fold([table.closest('.md-typeset__scrollwrap') ?? table], `${table.tBodies[0].rows.length} names`)
    part.open = index === 0
  }
  const from = (heading) => {
    const section = [heading]
    const ends = heading.tagName === 'H2' ? 'h2' : 'h2, h3'
    for (let next = heading.nextElementSibling; next && !next.matches(ends); next = next.nextElementSibling) section.push(next)
    return section
  }
  const foldSection = (heading) => {
    const [, ...body] = from(heading)
    if (!body.length) return
    const details = fold(body, '')
    details.className = 'section'
    details.before(heading)
    heading.querySelector('.headerlink')?.remove() // no link in what opens
    details.firstElementChild.append(heading)
  }
  const article = document.querySelector('article.md-typeset')
  if (article && !article.querySelector('.doc-heading') && article.scrollHeight > 9200) {
    for (const [index, heading] of [...article.querySelectorAll(':scope > h2')].entries()) {
      const parts = from(heading).filter((element) => element.tagName === 'H3')
      if (parts.length && (index === 0 || heading.nextElementSibling === parts[0])) parts.forEach(foldSection)
      else if (index) foldSection(heading)
    }
  }
  const methods = document.querySelector('h3#attributes-and-methods ~ .md-typeset__scrollwrap, h3#attributes-and-methods ~ table')
  if (methods) fold([methods], `${methods.querySelectorAll('tbody tr').length} names`)
  // A link to what is folded opens it.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)))
    if (!target) return
    for (let part = target.closest('details'); part; part = part.parentElement.closest('details')) part.open = true
    target.scrollIntoView()
  }
  addEventListener('hashchange', reveal)
  reveal()
}
