// A command may wrap between its words, not within an option such as --long-side.
for (const code of document.querySelectorAll('.md-typeset .language-bash pre > code')) {
  code.classList.add('command')
  const texts = []
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) texts.push(walker.currentNode)
  for (const text of texts) {
    const parts = text.data.split(/(\s+)/).map((part) => {
      if (!/\S/.test(part)) return part
      const word = document.createElement('span')
      word.className = 'word'
      word.textContent = part
      return word
    })
    text.replaceWith(...parts)
  }
}
