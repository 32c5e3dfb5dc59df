// A click on a column's heading sorts a table of more than five rows, by number where the cells have one.
{
  const key = (row, column) => {
    const text = row.cells[column].innerText.trim().replace(/,/g, '')
    const number = parseFloat(text)
    return isNaN(number) ? text : number
  }
  const order = (a, b) => {
    if (typeof a !== typeof b) return typeof a === 'number' ? -1 : 1
    return typeof a === 'number' ? b - a : a.localeCompare(b)
  }
  for (const table of document.querySelectorAll('.md-typeset table')) {
    if (!table.tHead || table.tBodies[0].rows.length < 6) continue
    for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
      if (head.tagName !== 'TH') continue
      head.tabIndex = 0
      head.title = 'Sort'
      const sort = () => {
        const up = head.getAttribute('aria-sort') === 'descending'
        for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort')
        head.setAttribute('aria-sort', up ? 'ascending' : 'descending')
        const rows = [...table.tBodies[0].rows].sort((a, b) => order(key(a, column), key(b, column)) * (up ? -1 : 1))
        table.tBodies[0].append(...rows)
      }
      head.addEventListener('click', sort)
      head.addEventListener('keydown', (event) => event.key === 'Enter' && sort())
    }
  }
}
// A table with a column `status` gets a choice of its rows. At first, those with a score are shown.
for (const table of document.querySelectorAll('.md-typeset table')) {
  const heads = [...(table.tHead?.rows[0].cells ?? [])].map((cell) => cell.innerText.trim())
  const column = heads.indexOf('status')
  if (column < 0) continue
  const status = (row) => row.cells[column].innerText.split(/[:;]/)[0].trim()
  const rows = [...table.tBodies[0].rows]
  const choice = document.createElement('select')
  choice.setAttribute('aria-label', 'Status')
  choice.className = 'status'
  const scored = (row) => status(row) !== 'not trained'
  const count = rows.filter(scored).length
  if (count && count < rows.length) choice.append(new Option(`has a score (${count} of ${rows.length})`, 'scored'))
  choice.append(new Option('every status', ''))
  for (const value of new Set(rows.map(status))) choice.append(new Option(value, value))
  const show = () => {
    for (const row of rows) row.hidden = !(choice.value === 'scored' ? scored(row) : ['', status(row)].includes(choice.value))
  }
  choice.addEventListener('change', show)
  show()
  table.before(choice)
}
// A table of many rows gets a field: rows that have all of its words stay. So do several tables that open, one after the
// other: the field opens those that have such rows and hides the others.
{
  const addField = (tables, place, parts) => {
    const rows = tables.flatMap((table) => [...(table.tBodies[0]?.rows ?? [])])
    const choice = place.previousElementSibling?.matches('select.status') ? place.previousElementSibling : null
    if (rows.length <= (choice ? 12 : 30)) return
    const field = document.createElement('input')
    field.type = 'search'
    field.className = 'rows'
    field.placeholder = `Filter ${rows.length} rows`
    field.setAttribute('aria-label', field.placeholder)
    field.addEventListener('input', () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean)
      if (words.length && choice?.value === 'scored') {
        choice.value = '' // a row without a score is found, too
        choice.dispatchEvent(new Event('change'))
      }
      for (const row of rows) {
        const text = row.textContent.toLowerCase()
        row.classList.toggle('filtered', !words.every((word) => text.includes(word)))
      }
      for (const part of parts) {
        const found = part.querySelector('tbody tr:not(.filtered)') !== null
        part.hidden = !found
        part.open = found && words.length > 0
      }
    })
    place.before(field)
  }
  const opens = (element) => element?.matches('details') && element.querySelector('table:not([class])')
  for (const first of document.querySelectorAll('.md-typeset details')) {
    if (!opens(first) || opens(first.previousElementSibling)) continue
    const parts = [first]
    while (opens(parts.at(-1).nextElementSibling)) parts.push(parts.at(-1).nextElementSibling)
    if (parts.length > 1) addField(parts.map((part) => part.querySelector('table')), first, parts)
  }
  for (const table of document.querySelectorAll('.md-typeset table:not([class])')) {
    if (!table.closest('details')) addField([table], table, [])
  }
}
// On a phone, a table without columns of numbers that is wider than the page, or whose cells are tall, shows its rows as cards; short cells
// stand side by side.
// One of many rows stays a table, but for that of a status, most of whose rows are hidden, and for one that opens.
{
  const narrow = matchMedia('(max-width: 44.9em)')
  const hides = (table, heads) => heads.includes('status') || table.closest('details')
  const stack = () => {
    for (const table of document.querySelectorAll('.md-typeset table:not([class]), .md-typeset table.stacked')) {
      table.classList.remove('stacked')
      if (!table.className) table.removeAttribute('class') // the theme styles tables without one
      const heads = [...(table.tHead?.rows[0].cells ?? [])].map((cell) => cell.innerText.trim())
      const rows = [...table.tBodies[0].rows]
      const wide = table.scrollWidth > table.closest('article').clientWidth
      const tall = rows.some((row) => row.offsetHeight > 100)
      const words = rows.some((row) => [...row.cells].some((cell) => cell.innerText.length > 24))
      const numbers = table.querySelector('td[style*="right"]') !== null
      if (!narrow.matches || !(wide || tall) || (numbers && !words) || (rows.length > 12 && !hides(table, heads))) continue
      for (const row of rows) {
        for (const [column, cell] of [...row.cells].entries()) {
          cell.dataset.column = heads[column]
          const text = cell.textContent.trim()
          cell.classList.toggle('empty', text === '')
          cell.classList.toggle('small', text !== '' && heads[column].length + text.length <= 24)
        }
      }
      table.classList.add('stacked')
    }
  }
  narrow.addEventListener('change', stack)
  document.addEventListener('toggle', stack, true) // a table that is not shown has no width
  stack()
}
