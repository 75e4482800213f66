'use strict';
document.documentElement.classList.add('on');
startGrid();
startSentence();
startCases();
